package volumes

import (
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

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
	m.event(v.pod, v1.EventTypeNormal, mappedReason, fmt.Sprintf(message, v.name(), "globalMapPath", v.done.shared))
	m.event(v.pod, v1.EventTypeNormal, mappedReason, fmt.Sprintf(message, v.name(), "volumeMapPath", filepath.Dir(v.done.mounted.HostPath)))
}

// recordMismatch records an event about a persistent volume whose disk has another filesystem than
// it specifies: retries cannot succeed.
func (m *Manager) recordMismatch(v *volume) {
	var why mount.MountError
	if v.bound != nil && errors.As(v.failure, &why) && why.Type == mount.FilesystemMismatch {
		m.volumeEvent(v.bound.PersistentVolume, v1.EventTypeWarning, mismatchReason,
			fmt.Sprintf("MountVolume failed for volume %q %s", v.name(), why.Message))
	}
}
