package volumes

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

// grow expands the mounted filesystem of a disk to the size of the disk, if the persistent volume
// has grown since the claim's status was written. Without a size in the status, it tries. It runs
// as part of a pod's volume setup only.
func (k *locals) grow(ctx context.Context, v *volume) error {
	b := v.bound
	known, size := b.claim.Status.Capacity[v1.ResourceStorage], b.Spec.Capacity[v1.ResourceStorage]
	if known.Cmp(size) >= 0 {
		return nil
	}
	// One pod at a time; later ones find it done.
	unlock, err := k.locks.lock(ctx, csiID{localPlugin, b.Spec.Local.Path})
	if err != nil {
		return err
	}
	defer unlock()
	claim, err := k.resizes.claims.reread(ctx, b.claim)
	if err != nil {
		return err
	}
	known = claim.Status.Capacity[v1.ResourceStorage]
	update := func(claim *v1.PersistentVolumeClaim) { k.resizes.claims.updateClaim(v.pod.UID, b, claim) }
	state, target := computeGrowth(claim, b.PersistentVolume, known)
	switch {
	case state == sized:
		update(claim)
		return nil
	case state == waits:
		return nil
	case b.readOnly && known.IsZero():
		return nil
	case b.readOnly:
		k.resizes.recordReadOnly(v.pod, claim, b.Name)
		update(mergeResized(claim, target)) // another pod may expand it; this pod does not retry
		return nil
	}
	if claim, err = k.resizes.begin(ctx, claim); err != nil {
		return err
	}
	began := time.Now()
	failed := k.resizeFilesystem(b.Spec.Local.Path, v.dir())
	if !known.IsZero() {
		k.host.metrics.operated(ctx, pluginName(localPlugin), expandVolume, time.Since(began), failed)
	}
	switch {
	case failed != nil && known.IsZero():
		k.host.log.Debug("the filesystem of a disk was not expanded, which may not be needed", "volume", b.Name, "error", failed)
		update(mergeResized(claim, target))
		return nil
	case failed != nil:
		if err := k.resizes.fail(ctx, claim, feasible, failed); err != nil {
			k.host.log.Warn("Failed to report on a claim that its volume cannot be expanded", "claim", claim.Namespace+"/"+claim.Name, "error", err)
		}
		return failed
	case !known.IsZero(): // otherwise it is not known whether there was anything to do
		k.resizes.recordResized(v.pod, claim, b.Name)
	}
	if claim, err = k.resizes.finish(ctx, claim, target); err != nil {
		return err
	}
	update(claim)
	return nil
}

// resizeFilesystem expands the filesystem on the device, which is mounted at dir, to the size of
// the device.
func (k *locals) resizeFilesystem(device, dir string) error {
	f, err := k.host.files.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = mount.NewResizeFs(k.host.exec).Resize(device, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()))
	return err
}
