package volumes

import (
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

// Reasons of events of volumes that were mounted or not; the words are the kubelet's.
const (
	mappedReason   = "SuccessfulMountVolume"
	mismatchReason = "FailedMountOnFilesystemMismatch"
)

// recordMapped tells of a disk that was made present where it is: for all pods, and for this one.
// Other volumes have no such event.
func (m *Manager) recordMapped(v *volume) {
	if v.done.shared == "" {
		return
	}
	const message = "MapVolume.MapPodDevice succeeded for volume %q %s %q"
	m.event(v.pod, v1.EventTypeNormal, mappedReason, fmt.Sprintf(message, v.name(), "globalMapPath", v.done.shared))
	m.event(v.pod, v1.EventTypeNormal, mappedReason, fmt.Sprintf(message, v.name(), "volumeMapPath", filepath.Dir(v.done.mounted.HostPath)))
}

// recordMismatch tells a persistent volume, besides its pod, that its disk has another filesystem
// than it names: no other try will mount it.
func (m *Manager) recordMismatch(v *volume) {
	var why mount.MountError
	if v.bound != nil && errors.As(v.failure, &why) && why.Type == mount.FilesystemMismatch {
		m.volumeEvent(v.bound.PersistentVolume, v1.EventTypeWarning, mismatchReason,
			fmt.Sprintf("MountVolume failed for volume %q %s", v.name(), why.Message))
	}
}
