package volumes

import (
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

// Recorder records events.
type Recorder interface {
	// Event records an event about a container, or about the whole pod if container is "".
	Event(p *v1.Pod, container, eventtype, reason, message string)
	ClaimEvent(c *v1.PersistentVolumeClaim, eventtype, reason, message string)
	VolumeEvent(v *v1.PersistentVolume, eventtype, reason, message string)
}

type noEvents struct{}

func (noEvents) Event(*v1.Pod, string, string, string, string)                {}
func (noEvents) ClaimEvent(*v1.PersistentVolumeClaim, string, string, string) {}
func (noEvents) VolumeEvent(*v1.PersistentVolume, string, string, string)     {}

// Reasons of mount events; they are the kubelet's.
const (
	mappedReason   = "SuccessfulMountVolume"
	mismatchReason = "FailedMountOnFilesystemMismatch"
)

// recordMapped records events for a block volume that was made available: globally, and for this
// pod. Other volumes have no such event.
func (m *Manager) recordMapped(v *volume) {
	if v.done.shared == "" {
		return
	}
	const message = "MapVolume.MapPodDevice succeeded for volume %q %s %q"
	m.host.recorder.Event(v.pod, "", v1.EventTypeNormal, mappedReason, fmt.Sprintf(message, v.name(), "globalMapPath", v.done.shared))
	m.host.recorder.Event(v.pod, "", v1.EventTypeNormal, mappedReason, fmt.Sprintf(message, v.name(), "volumeMapPath", filepath.Dir(v.done.mounted.HostPath)))
}

// recordMismatch records an event about a persistent volume whose disk has another filesystem than
// it specifies: retries cannot succeed.
func (m *Manager) recordMismatch(v *volume) {
	var why mount.MountError
	if v.bound != nil && errors.As(v.failure, &why) && why.Type == mount.FilesystemMismatch {
		m.host.recorder.VolumeEvent(v.bound.PersistentVolume, v1.EventTypeWarning, mismatchReason,
			fmt.Sprintf("MountVolume failed for volume %q %s", v.name(), why.Message))
	}
}
