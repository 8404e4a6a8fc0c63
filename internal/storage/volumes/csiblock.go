package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// csiBlocks are CSI volumes with volumeMode Block.
type csiBlocks struct {
	host     *host
	disks    *disks
	dirs     *csiDirs
	drivers  *csiDrivers
	state    *csiState
	nodeName string
}

// publish runs the steps of publish that differ for a block volume.
func (c *csiBlocks) publish(ctx context.Context, driver *csi.Driver, v csiVolume, r *csiapi.NodePublishVolumeRequest) (step string, err error) {
	d, link := c.dirs.disk(v.specName), diskLink(v.podDir, v.specName)
	if err := c.stage(ctx, driver, v, r); err != nil {
		return "SetUpDevice", err
	}
	r.StagingTargetPath = d.staging
	if err := c.drivers.describePod(ctx, v, r); err != nil {
		return "MapPodDevice", err
	}
	if err := c.host.files.Ensure(d.published, 0o750, 0o750); err != nil {
		return "MapPodDevice", csiError("make the folder of the disk: %w", err)
	}
	_, err = c.host.files.Lstat(link)
	linked := err == nil
	if err := c.host.files.EnsureLink(r.TargetPath, link); err != nil {
		return "MapPodDevice", err
	}
	if err := driver.Publish(ctx, r); err != nil {
		err = csiError("blockMapper.MapPodDevice failed: %w", err)
		// Leftovers are unpublished when the pod is deleted.
		if !linked && !csi.IsUncertain(err) {
			err = errors.Join(err, c.removeTarget(r.TargetPath, link))
		}
		return "MapPodDevice", err
	}
	device, number, err := c.disks.find(r.TargetPath)
	if err != nil {
		return "MapBlockVolume", err
	}
	if _, err := c.disks.bind(device, number, filepath.Join(d.bound, string(v.pod.UID))); err != nil {
		return "MapBlockVolume", err
	}
	return "", nil
}

// stage has the driver stage the disk, unless the driver does not stage or this agent has staged
// it.
func (c *csiBlocks) stage(ctx context.Context, driver *csi.Driver, v csiVolume, published *csiapi.NodePublishVolumeRequest) error {
	d := c.dirs.disk(v.specName)
	existed, err := c.dirs.writeData(d.data, v.data(c.nodeName))
	if err != nil {
		return csiError("blockMapper.SetUpDevice failed: %w", err)
	}
	var staged bool
	c.state.locked(func() {
		staged = c.state.staged[v.id]
		c.state.staged[v.id], c.state.disks[v.id] = staged, v.specName
	})
	if staged || !v.capabilities[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	secrets, err := c.drivers.secret(ctx, v.stageSecret)
	if err != nil {
		return err
	}
	if err := c.host.files.Ensure(d.staging, 0o750, 0o750); err != nil {
		return csiError("make the directory to stage in: %w", err)
	}
	err = driver.Stage(ctx, &csiapi.NodeStageVolumeRequest{
		VolumeId: v.id.handle, PublishContext: published.PublishContext, StagingTargetPath: d.staging, VolumeCapability: published.VolumeCapability,
		Secrets: secrets, VolumeContext: v.attributes,
	})
	if err == nil {
		c.state.locked(func() { c.state.staged[v.id] = true })
		return nil
	}
	err = csiError("blockMapper.SetUpDevice failed: %w", err)
	if existed || csi.IsUncertain(err) {
		return err
	}
	if e := c.remove(d); e != nil {
		return errors.Join(err, e)
	}
	c.state.locked(func() {
		delete(c.state.staged, v.id)
		delete(c.state.disks, v.id)
	})
	return err
}

// unpublishAll unpublishes the disks of the pod, including those of an earlier agent.
func (c *csiBlocks) unpublishAll(ctx context.Context, uid pod.UID, podDir string) error {
	names := map[string]bool{}
	links, err := c.host.files.ReadDir(filepath.Dir(diskLink(podDir, "*")))
	if err := ignoreMissing(err); err != nil {
		return err
	}
	for _, link := range links {
		names[link.Name()] = true
	}
	known, err := c.dirs.knownDisks()
	if err != nil {
		return err
	}
	for _, name := range known {
		d := c.dirs.disk(name)
		for _, path := range []string{d.target(uid), filepath.Join(d.bound, string(uid))} {
			if _, err := c.host.files.Lstat(path); err == nil {
				names[name] = true
			} else if ignoreMissing(err) != nil {
				return err
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := c.unpublish(ctx, uid, podDir, name); err != nil {
			errs = append(errs, fmt.Errorf("disk %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *csiBlocks) unpublish(ctx context.Context, uid pod.UID, podDir, name string) (err error) {
	d := c.dirs.disk(name)
	data, err := c.dirs.readData(d.data)
	if err != nil {
		return c.unbindUnknown(uid, podDir, name, err)
	}
	unlock, err := c.state.locks.lock(ctx, data.id())
	if err != nil {
		return err
	}
	defer unlock()
	began := time.Now()
	defer func() {
		c.host.metrics.operated(ctx, csiPluginName(data.DriverName), unmapVolume, time.Since(began), err)
	}()
	c.state.locked(func() { delete(c.state.published, publication{uid, name}) })
	if err := c.disks.unbind(d.bound, string(uid)); err != nil {
		return err
	}
	driver, err := c.drivers.forPod(uid, data.DriverName)
	if err != nil {
		return err
	}
	if err := driver.Unpublish(ctx, data.VolumeHandle, d.target(uid)); err != nil {
		c.state.locked(func() { c.state.waiting[uid] = true })
		return heldBy(csiError("blockMapper.UnmapPodDevice failed: %w", err), d.target(uid))
	}
	return c.removeTarget(d.target(uid), diskLink(podDir, name))
}

// unbindUnknown unmounts a pod's disk whose driver is not known.
func (c *csiBlocks) unbindUnknown(uid pod.UID, podDir, name string, cause error) error {
	d := c.dirs.disk(name)
	c.host.log.Warn("The driver of a block volume is unknown, unpublishing it without the driver", "volume", name, "error", cause)
	for _, dir := range []string{d.bound, d.published} {
		if err := c.disks.unbind(dir, string(uid)); err != nil {
			return err
		}
	}
	return c.host.files.Unlink(diskLink(podDir, name))
}

// unstage has the driver unstage the disk. The caller holds the volume's lock.
func (c *csiBlocks) unstage(ctx context.Context, id csiID, d disk) error {
	for _, dir := range []string{d.bound, d.published} {
		left, err := c.host.files.ReadDir(dir)
		if err := ignoreMissing(err); err != nil {
			return err
		}
		if len(left) > 0 {
			names := make([]string, len(left))
			for i, e := range left {
				names[i] = e.Name()
			}
			return fmt.Errorf("the device %q is still referenced from other Pods %v", d.dir, names)
		}
	}
	driver, err := c.drivers.registered.Driver(id.driver)
	if err != nil {
		return csiError("%w", err)
	}
	if _, err := c.host.files.Lstat(d.staging); err == nil {
		if err := unstage(ctx, driver, id, d.staging, "blockMapper.TearDownDevice"); err != nil {
			return err
		}
	}
	if err := c.remove(d); err != nil {
		return err
	}
	c.state.locked(func() { delete(c.state.disks, id) })
	return nil
}

// remove removes the directories of an unused disk, the csiDataFile last. It deletes everything in
// the staging directory except mounts.
func (c *csiBlocks) remove(d disk) error {
	if err := c.host.files.Remove(d.staging); err != nil {
		return err
	}
	for _, dir := range []string{d.published, d.bound} {
		if err := c.host.files.RemoveEmpty(dir); err != nil {
			return err
		}
	}
	return c.host.files.Remove(d.dir)
}

// removeTarget removes leftovers of the driver at the publish target, unless it is still a block
// device, and then the pod's link.
func (c *csiBlocks) removeTarget(path, link string) error {
	number, err := c.disks.published(path)
	if err := ignoreMissing(err); err != nil {
		return err
	}
	if number != 0 {
		return fmt.Errorf("%s is still a disk, though the driver says that it is not", path)
	}
	err = c.host.files.Unlink(path)
	if errors.Is(err, unix.EISDIR) {
		err = c.host.files.RemoveEmpty(path)
	}
	if err != nil {
		return err
	}
	return c.host.files.Unlink(link)
}

// load finds disks of an earlier agent; pods are the pod directories.
func (c *csiBlocks) load(pods []string) {
	names, err := c.dirs.knownDisks()
	if err != nil {
		c.host.log.Warn("disks that an earlier agent left are not found", "error", err)
	}
	for _, name := range names {
		d := c.dirs.disk(name)
		data, err := c.dirs.readData(d.data)
		if err != nil {
			c.host.log.Warn("a disk that an earlier agent left is not known", "volume", name, "error", err)
			if err := c.remove(d); err != nil {
				c.host.log.Warn("Failed to remove the directory of an unknown block volume", "volume", name, "error", err)
			}
			continue
		}
		c.state.locked(func() { c.state.staged[data.id()], c.state.disks[data.id()] = false, name })
		for _, podDir := range pods {
			if _, err := c.host.files.Lstat(diskLink(podDir, name)); err == nil {
				c.state.addUser(pod.UID(filepath.Base(podDir)), data.id())
			}
		}
		published, err := c.host.files.ReadDir(d.published)
		if ignoreMissing(err) != nil {
			c.host.log.Warn("pods that have the disk are not found", "volume", name, "error", err)
		}
		for _, s := range published {
			c.state.addUser(pod.UID(s.Name()), data.id())
		}
	}
}
