package volumes

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"berth/internal/pod"
)

// growLocal makes the filesystem of a disk, which is mounted at dir, as large as the disk, if the persistent volume has grown since the claim was told its
// size. For a claim that was told none it may have, so that it is tried. It is done when a pod's volumes are set up, not while nothing is to be started.
func (m *Manager) growLocal(ctx context.Context, p *v1.Pod, dir string, b bound) error {
	known, size := b.claim.Status.Capacity[v1.ResourceStorage], b.Spec.Capacity[v1.ResourceStorage]
	if known.Cmp(size) >= 0 {
		return nil
	}
	// One pod at a time; those that come later find it done.
	give, err := m.csi.take(ctx, csiID{localPlugin, b.Spec.Local.Path})
	if err != nil {
		return err
	}
	defer give()
	claim, err := m.claims.GetPersistentVolumeClaim(ctx, b.claim.Namespace, b.claim.Name)
	if err != nil {
		return err
	}
	if claim.UID != b.claim.UID {
		return fmt.Errorf("PVC %s/%s is another one by now", claim.Namespace, claim.Name)
	}
	known = claim.Status.Capacity[v1.ResourceStorage]
	state, target := computeGrowth(claim, b.PersistentVolume, known)
	switch {
	case state == sized:
		m.noteClaim(p.UID, b, claim)
		return nil
	case state == waits:
		return nil
	case b.readOnly && known.IsZero():
		return nil
	case b.readOnly:
		m.tellGrowth(p, claim, v1.EventTypeWarning, readOnlyReason, fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", b.Name))
		m.noteClaim(p.UID, b, mergeResized(claim, target)) // another pod may do it; this one is done with it
		return nil
	}
	if claim, err = m.claims.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResizeBegun(claim)); err != nil {
		return fmt.Errorf("mark PVC %s/%s as resize in progress: %w", b.claim.Namespace, b.claim.Name, err)
	}
	began := time.Now()
	failed := m.resizeFilesystem(b.Spec.Local.Path, dir)
	if !known.IsZero() {
		m.operated(ctx, pluginName(localPlugin), ExpandVolume, time.Since(began), failed)
	}
	switch {
	case failed != nil && known.IsZero():
		m.log.Debug("the filesystem of a disk was not expanded, which may not be needed", "volume", b.Name, "error", failed)
		m.noteClaim(p.UID, b, mergeResized(claim, target))
		return nil
	case failed != nil:
		message := fmt.Sprintf("failed to expand pvc with %v", failed)
		if _, err := m.claims.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResizeFailed(claim, message, feasible, time.Now())); err != nil {
			m.log.Warn("a claim is not told that its volume cannot be expanded", "claim", claim.Namespace+"/"+claim.Name, "error", err)
		}
		return failed
	}
	if !known.IsZero() { // else it is not known whether there was anything to do
		m.tellGrowth(p, claim, v1.EventTypeNormal, resizedReason, fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", b.Name, m.csi.NodeName))
	}
	if claim, err = m.claims.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResized(claim, target)); err != nil {
		return fmt.Errorf("mark PVC %s/%s as resized: %w", b.claim.Namespace, b.claim.Name, err)
	}
	m.noteClaim(p.UID, b, claim)
	return nil
}

// resizeFilesystem makes the filesystem on the device, which is mounted at dir, as large as the device.
func (m *Manager) resizeFilesystem(device, dir string) error {
	f, err := m.files.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = mount.NewResizeFs(m.exec).Resize(device, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()))
	return err
}

// noteClaim notes what became of the claim through which the pod has the volume.
func (m *Manager) noteClaim(uid pod.UID, b bound, claim *v1.PersistentVolumeClaim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, had := range m.bound[uid] {
		if had.Name == b.Name {
			had.claim = claim
			m.bound[uid][name] = had
		}
	}
}
