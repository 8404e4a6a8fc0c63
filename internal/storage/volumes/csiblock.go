package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// disk has the paths of a CSI block volume; they are the kubelet's.
type disk struct {
	staging   string // shared by all pods
	published string // directory of the driver's publish targets, by pod UID
	dir       string // parent of the next two
	data      string // directory of the csiDataFile
	bound     string // directory of a bind mount for each pod, by UID
}

func (c *csiShared) csiDisks() string {
	return filepath.Join(c.root, "plugins/kubernetes.io/csi", devicesDir)
}

// diskOf returns the paths of the persistent volume with this name.
func (c *csiShared) diskOf(name string) disk {
	all := c.csiDisks()
	dir := filepath.Join(all, name)
	return disk{
		staging: filepath.Join(all, "staging", name), published: filepath.Join(all, "publish", name),
		dir: dir, data: filepath.Join(dir, "data"), bound: filepath.Join(dir, "dev"),
	}
}

// target returns the path at which the driver publishes the disk for the pod.
func (d disk) target(uid pod.UID) string { return filepath.Join(d.published, string(uid)) }

// diskLink returns the link in the pod's directory to its disk. It is created before the disk is
// published and removed after it is unpublished: it marks the disks that a pod may have.
func diskLink(podDir, name string) string { return filepath.Join(podDir, devicesDir, csiPlugin, name) }

// csiDisks are CSI volumes with volumeMode Block.
type csiDisks struct{ *csiShared }

// publish runs the steps of publish that differ for a block volume.
func (c *csiDisks) publish(ctx context.Context, driver *csi.Driver, v csiVolume, r *csiapi.NodePublishVolumeRequest) (step string, err error) {
	d, link := c.diskOf(v.specName), diskLink(v.podDir, v.specName)
	if err := c.stage(ctx, driver, v, r); err != nil {
		return "SetUpDevice", err
	}
	r.StagingTargetPath = d.staging
	if err := c.describePod(ctx, v, r); err != nil {
		return "MapPodDevice", err
	}
	if err := c.files.Ensure(d.published, 0o750, 0o750); err != nil {
		return "MapPodDevice", csiError("make the folder of the disk: %w", err)
	}
	_, err = c.files.Lstat(link)
	linked := err == nil
	if err := c.files.EnsureLink(r.TargetPath, link); err != nil {
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
	device, number, err := c.findDisk(r.TargetPath)
	if err != nil {
		return "MapBlockVolume", err
	}
	if _, err := c.bindDisk(device, number, filepath.Join(d.bound, string(v.pod.UID))); err != nil {
		return "MapBlockVolume", err
	}
	return "", nil
}

// stage has the driver stage the disk, unless the driver does not stage or this agent has staged
// it.
func (c *csiDisks) stage(ctx context.Context, driver *csi.Driver, v csiVolume, published *csiapi.NodePublishVolumeRequest) error {
	d := c.diskOf(v.specName)
	existed, err := c.writeCSIData(d.data, csiData{
		DriverName: v.driver, VolumeHandle: v.handle, SpecVolID: v.specName, NodeName: c.csi.NodeName,
		AttachmentID: v.attachment(c.csi.NodeName), Lifecycle: v.lifecycle(),
	})
	if err != nil {
		return csiError("blockMapper.SetUpDevice failed: %w", err)
	}
	var staged bool
	c.csi.note(func() {
		staged = c.csi.staged[v.csiID]
		c.csi.staged[v.csiID], c.csi.disks[v.csiID] = staged, v.specName
	})
	if staged || !v.can[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	secrets, err := c.secret(ctx, v.stageSecret)
	if err != nil {
		return err
	}
	if err := c.files.Ensure(d.staging, 0o750, 0o750); err != nil {
		return csiError("make the directory to stage in: %w", err)
	}
	err = driver.Stage(ctx, &csiapi.NodeStageVolumeRequest{
		VolumeId: v.handle, PublishContext: published.PublishContext, StagingTargetPath: d.staging, VolumeCapability: published.VolumeCapability,
		Secrets: secrets, VolumeContext: v.attributes,
	})
	if err == nil {
		c.csi.note(func() { c.csi.staged[v.csiID] = true })
		return nil
	}
	err = csiError("blockMapper.SetUpDevice failed: %w", err)
	if existed || csi.IsUncertain(err) {
		return err
	}
	if e := c.remove(d); e != nil {
		return errors.Join(err, e)
	}
	c.csi.note(func() {
		delete(c.csi.staged, v.csiID)
		delete(c.csi.disks, v.csiID)
	})
	return err
}

// unpublishAll unpublishes the disks of the pod, including those of an earlier agent.
func (c *csiDisks) unpublishAll(ctx context.Context, uid pod.UID, podDir string) error {
	names := map[string]bool{}
	links, err := c.files.Open(filepath.Dir(diskLink(podDir, "*")))
	if err == nil {
		defer links.Close()
		var found []string
		found, err = links.Readdirnames(-1)
		for _, name := range found {
			names[name] = true
		}
	}
	if err := ignoreMissing(err); err != nil {
		return err
	}
	known, err := c.knownDisks()
	if err != nil {
		return err
	}
	for _, name := range known {
		d := c.diskOf(name)
		for _, path := range []string{d.target(uid), filepath.Join(d.bound, string(uid))} {
			if _, err := c.files.Lstat(path); err == nil {
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

func (c *csiDisks) unpublish(ctx context.Context, uid pod.UID, podDir, name string) (err error) {
	d := c.diskOf(name)
	data, err := c.readCSIData(d.data)
	if err != nil {
		return c.unbindUnknown(uid, podDir, name, err)
	}
	give, err := c.csi.take(ctx, data.id())
	if err != nil {
		return err
	}
	defer give()
	began := time.Now()
	defer func() { c.operated(ctx, csiPluginName(data.DriverName), unmapVolume, time.Since(began), err) }()
	c.csi.note(func() { delete(c.csi.published, publication{uid, name}) })
	if err := c.unbindDisk(d.bound, string(uid)); err != nil {
		return err
	}
	driver, err := c.driver(uid, data.DriverName)
	if err != nil {
		return err
	}
	if err := driver.Unpublish(ctx, data.VolumeHandle, d.target(uid)); err != nil {
		c.csi.note(func() { c.csi.waiting[uid] = true })
		return heldBy(csiError("blockMapper.UnmapPodDevice failed: %w", err), d.target(uid))
	}
	return c.removeTarget(d.target(uid), diskLink(podDir, name))
}

// unbindUnknown unmounts a pod's disk whose driver is not known.
func (c *csiDisks) unbindUnknown(uid pod.UID, podDir, name string, cause error) error {
	d := c.diskOf(name)
	c.log.Warn("The driver of a block volume is unknown, unpublishing it without the driver", "volume", name, "error", cause)
	for _, dir := range []string{d.bound, d.published} {
		if err := c.unbindDisk(dir, string(uid)); err != nil {
			return err
		}
	}
	return c.files.Unlink(diskLink(podDir, name))
}

// unstage has the driver unstage the disk. The caller holds the volume's lock.
func (c *csiDisks) unstage(ctx context.Context, id csiID, d disk) error {
	for _, dir := range []string{d.bound, d.published} {
		left, err := c.files.ReadDir(dir)
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
	driver, err := c.csi.Drivers.Driver(id.driver)
	if err != nil {
		return csiError("%w", err)
	}
	if _, err := c.files.Lstat(d.staging); err == nil {
		can, err := driver.Capabilities(ctx)
		if err != nil {
			return csiError("capabilities of the driver: %w", err)
		}
		if can[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			if err := driver.Unstage(ctx, id.handle, d.staging); err != nil {
				return heldBy(csiError("blockMapper.TearDownDevice failed: %w", err), d.staging)
			}
		}
	}
	if err := c.remove(d); err != nil {
		return err
	}
	c.csi.note(func() { delete(c.csi.disks, id) })
	return nil
}

// remove removes the directories of an unused disk, the csiDataFile last. It deletes everything in
// the staging directory except mounts.
func (c *csiDisks) remove(d disk) error {
	if err := c.files.Remove(d.staging); err != nil {
		return err
	}
	for _, dir := range []string{d.published, d.bound} {
		if err := c.files.RemoveEmpty(dir); err != nil {
			return err
		}
	}
	return c.files.Remove(d.dir)
}

// removeTarget removes leftovers of the driver at the publish target, unless it is still a block
// device, and then the pod's link.
func (c *csiDisks) removeTarget(path, link string) error {
	number, err := c.publishedDisk(path)
	if err := ignoreMissing(err); err != nil {
		return err
	}
	if number != 0 {
		return fmt.Errorf("%s is still a disk, though the driver says that it is not", path)
	}
	err = c.files.Unlink(path)
	if errors.Is(err, unix.EISDIR) {
		err = c.files.RemoveEmpty(path)
	}
	if err != nil {
		return err
	}
	return c.files.Unlink(link)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// knownDisks returns the names of disks that have a directory.
func (c *csiShared) knownDisks() ([]string, error) {
	names := map[string]bool{}
	for _, dir := range []string{c.csiDisks(), filepath.Join(c.csiDisks(), "publish")} {
		entries, err := c.files.ReadDir(dir)
		if err := ignoreMissing(err); err != nil {
			return nil, err
		}
		for _, e := range entries {
			names[e.Name()] = true
		}
	}
	delete(names, "staging")
	delete(names, "publish")
	return slices.Sorted(maps.Keys(names)), nil
}

// load finds disks of an earlier agent; pods are the pod directories.
func (c *csiDisks) load(pods []string) {
	names, err := c.knownDisks()
	if err != nil {
		c.log.Warn("disks that an earlier agent left are not found", "error", err)
	}
	for _, name := range names {
		d := c.diskOf(name)
		data, err := c.readCSIData(d.data)
		if err != nil {
			c.log.Warn("a disk that an earlier agent left is not known", "volume", name, "error", err)
			if err := c.remove(d); err != nil {
				c.log.Warn("Failed to remove the directory of an unknown block volume", "volume", name, "error", err)
			}
			continue
		}
		c.csi.note(func() { c.csi.staged[data.id()], c.csi.disks[data.id()] = false, name })
		for _, podDir := range pods {
			if _, err := c.files.Lstat(diskLink(podDir, name)); err == nil {
				c.csi.use(pod.UID(filepath.Base(podDir)), data.id())
			}
		}
		shown, err := c.files.ReadDir(d.published)
		if ignoreMissing(err) != nil {
			c.log.Warn("pods that have the disk are not found", "volume", name, "error", err)
		}
		for _, s := range shown {
			c.csi.use(pod.UID(s.Name()), data.id())
		}
	}
}
