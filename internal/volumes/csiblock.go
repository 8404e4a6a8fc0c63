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
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"berth/internal/csi"
	"berth/internal/pod"
)

// disk is where a disk of a CSI driver is; the paths are the kubelet's.
type disk struct {
	staging   string // what all pods share of it
	published string // folder of what the driver shows to pods, by UID
	dir       string // folder of the next two
	data      string // folder of the csiDataFile
	bound     string // folder of a bind mount for each pod, by UID
}

func (m *Manager) csiDisks() string {
	return filepath.Join(m.root, "plugins/kubernetes.io/csi", devicesDir)
}

// diskOf returns the paths of the persistent volume of the name.
func (m *Manager) diskOf(name string) disk {
	all := m.csiDisks()
	dir := filepath.Join(all, name)
	return disk{
		staging: filepath.Join(all, "staging", name), published: filepath.Join(all, "publish", name),
		dir: dir, data: filepath.Join(dir, "data"), bound: filepath.Join(dir, "dev"),
	}
}

// target is where the driver shows the disk to the pod.
func (d disk) target(uid pod.UID) string { return filepath.Join(d.published, string(uid)) }

// diskLink is the link in the pod's folder that leads to its disk. It is made before the driver is asked for the disk, and goes after the driver has
// taken it back: so it tells what a pod may have.
func diskLink(podDir, name string) string { return filepath.Join(podDir, devicesDir, csiPlugin, name) }

// publishDisk does the steps of publish that are different for a disk.
func (m *Manager) publishDisk(ctx context.Context, driver *csi.Driver, p *v1.Pod, podDir string, v csiVolume, object *storagev1.CSIDriver, can csi.Capabilities, r *csiapi.NodePublishVolumeRequest) (step string, err error) {
	d, link := m.diskOf(v.specName), diskLink(podDir, v.specName)
	if err := m.stageDisk(ctx, driver, d, v, can, r); err != nil {
		return "SetUpDevice", err
	}
	r.StagingTargetPath = d.staging
	if err := m.describePod(ctx, p, v, object, r); err != nil {
		return "MapPodDevice", err
	}
	if err := m.files.Ensure(d.published, 0o750, 0o750); err != nil {
		return "MapPodDevice", csiError("make the folder of the disk: %w", err)
	}
	_, err = m.files.Lstat(link)
	linked := err == nil
	if err := m.files.EnsureLink(r.TargetPath, link); err != nil {
		return "MapPodDevice", err
	}
	if err := driver.Publish(ctx, r); err != nil {
		err = csiError("blockMapper.MapPodDevice failed: %w", err)
		// What may be there is taken back when the pod goes.
		if !linked && !csi.IsUncertain(err) {
			err = errors.Join(err, m.removeTarget(r.TargetPath, link))
		}
		return "MapPodDevice", err
	}
	device, number, err := m.findDisk(r.TargetPath)
	if err != nil {
		return "MapBlockVolume", err
	}
	if _, err := m.bindDisk(device, number, filepath.Join(d.bound, string(p.UID))); err != nil {
		return "MapBlockVolume", err
	}
	return "", nil
}

// stageDisk has the driver stage the disk, if it stages anything and this agent did not see that it has.
func (m *Manager) stageDisk(ctx context.Context, driver *csi.Driver, d disk, v csiVolume, can csi.Capabilities, published *csiapi.NodePublishVolumeRequest) error {
	existed, err := m.writeCSIData(d.data, csiData{
		DriverName: v.driver, VolumeHandle: v.handle, SpecVolID: v.specName, NodeName: m.csi.NodeName,
		AttachmentID: v.attachment(m.csi.NodeName), Lifecycle: v.lifecycle(),
	})
	if err != nil {
		return csiError("blockMapper.SetUpDevice failed: %w", err)
	}
	var staged bool
	m.csi.note(func() {
		staged = m.csi.staged[v.csiID]
		m.csi.staged[v.csiID], m.csi.disks[v.csiID] = staged, v.specName
	})
	if staged || !can[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	secrets, err := m.secret(ctx, v.stageSecret)
	if err != nil {
		return err
	}
	if err := m.files.Ensure(d.staging, 0o750, 0o750); err != nil {
		return csiError("make the directory to stage in: %w", err)
	}
	err = driver.Stage(ctx, &csiapi.NodeStageVolumeRequest{
		VolumeId: v.handle, PublishContext: published.PublishContext, StagingTargetPath: d.staging, VolumeCapability: published.VolumeCapability,
		Secrets: secrets, VolumeContext: v.attributes,
	})
	if err == nil {
		m.csi.note(func() { m.csi.staged[v.csiID] = true })
		return nil
	}
	err = csiError("blockMapper.SetUpDevice failed: %w", err)
	if existed || csi.IsUncertain(err) {
		return err
	}
	if e := m.removeDisk(d); e != nil {
		return errors.Join(err, e)
	}
	m.csi.note(func() {
		delete(m.csi.staged, v.csiID)
		delete(m.csi.disks, v.csiID)
	})
	return err
}

// unpublishDisks has the drivers take back the disks of the pod, by whatever agent it was given them.
func (m *Manager) unpublishDisks(ctx context.Context, uid pod.UID, podDir string) error {
	names := map[string]bool{}
	links, err := m.files.Open(filepath.Dir(diskLink(podDir, "*")))
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
	known, err := m.knownDisks()
	if err != nil {
		return err
	}
	for _, name := range known {
		d := m.diskOf(name)
		for _, path := range []string{d.target(uid), filepath.Join(d.bound, string(uid))} {
			if _, err := m.files.Lstat(path); err == nil {
				names[name] = true
			} else if ignoreMissing(err) != nil {
				return err
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := m.unpublishDisk(ctx, uid, podDir, name); err != nil {
			errs = append(errs, fmt.Errorf("disk %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) unpublishDisk(ctx context.Context, uid pod.UID, podDir, name string) (err error) {
	d := m.diskOf(name)
	data, err := m.readCSIData(d.data)
	if err != nil {
		return m.unbindUnknownDisk(uid, podDir, name, err)
	}
	give, err := m.csi.take(ctx, data.id())
	if err != nil {
		return err
	}
	defer give()
	began := time.Now()
	defer func() { m.operated(ctx, csiPluginName(data.DriverName), UnmapVolume, time.Since(began), err) }()
	m.csi.note(func() { delete(m.csi.published, publication{uid, name}) })
	if err := m.unbindDisk(d.bound, string(uid)); err != nil {
		return err
	}
	driver, err := m.driver(uid, data.DriverName)
	if err != nil {
		return err
	}
	if err := driver.Unpublish(ctx, data.VolumeHandle, d.target(uid)); err != nil {
		m.csi.note(func() { m.csi.waiting[uid] = true })
		return heldBy(csiError("blockMapper.UnmapPodDevice failed: %w", err), d.target(uid))
	}
	return m.removeTarget(d.target(uid), diskLink(podDir, name))
}

// unbindUnknownDisk takes a disk from the pod of which nobody knows whose it is.
func (m *Manager) unbindUnknownDisk(uid pod.UID, podDir, name string, cause error) error {
	d := m.diskOf(name)
	m.log.Warn("nobody knows whose the disk is: it is taken from the pod without its driver", "volume", name, "error", cause)
	for _, dir := range []string{d.bound, d.published} {
		if err := m.unbindDisk(dir, string(uid)); err != nil {
			return err
		}
	}
	return m.files.Unlink(diskLink(podDir, name))
}

// unstageDisk has the driver unstage the disk; it is the caller's turn.
func (m *Manager) unstageDisk(ctx context.Context, id csiID, d disk) error {
	for _, dir := range []string{d.bound, d.published} {
		left, err := m.files.ReadDir(dir)
		if err := ignoreMissing(err); err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("the device %q is still referenced from other Pods: %s", d.dir, left[0].Name())
		}
	}
	driver, err := m.csi.Drivers.Driver(id.driver)
	if err != nil {
		return csiError("%w", err)
	}
	if _, err := m.files.Lstat(d.staging); err == nil {
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
	if err := m.removeDisk(d); err != nil {
		return err
	}
	m.csi.note(func() { delete(m.csi.disks, id) })
	return nil
}

// removeDisk removes the folders of a disk that no pod has any more, the file that tells whose it is last. Of what a driver keeps where it stages,
// everything goes, but nothing that is still mounted.
func (m *Manager) removeDisk(d disk) error {
	if err := m.files.Remove(d.staging); err != nil {
		return err
	}
	for _, dir := range []string{d.published, d.bound} {
		if err := m.files.RemoveEmpty(dir); err != nil {
			return err
		}
	}
	return m.files.Remove(d.dir)
}

// removeTarget removes what a driver may have left of the file at which it showed a disk, unless that is one still, and then the pod's link.
func (m *Manager) removeTarget(path, link string) error {
	number, err := m.shownDisk(path)
	if err := ignoreMissing(err); err != nil {
		return err
	}
	if number != 0 {
		return fmt.Errorf("%s is still a disk, though the driver says that it is not", path)
	}
	err = m.files.Unlink(path)
	if errors.Is(err, unix.EISDIR) {
		err = m.files.RemoveEmpty(path)
	}
	if err != nil {
		return err
	}
	return m.files.Unlink(link)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// knownDisks returns the names of the disks of which there is a folder.
func (m *Manager) knownDisks() ([]string, error) {
	names := map[string]bool{}
	for _, dir := range []string{m.csiDisks(), filepath.Join(m.csiDisks(), "publish")} {
		entries, err := m.files.ReadDir(dir)
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

// loadDisks finds the disks that an earlier agent left.
func (m *Manager) loadDisks(pods []pod.UID) {
	names, err := m.knownDisks()
	if err != nil {
		m.log.Warn("disks that an earlier agent left are not found", "error", err)
	}
	for _, name := range names {
		d := m.diskOf(name)
		data, err := m.readCSIData(d.data)
		if err != nil {
			m.log.Warn("a disk that an earlier agent left is not known", "volume", name, "error", err)
			if err := m.removeDisk(d); err != nil {
				m.log.Warn("the folder of a disk that nobody knows stays", "volume", name, "error", err)
			}
			continue
		}
		m.csi.note(func() { m.csi.staged[data.id()], m.csi.disks[data.id()] = false, name })
		for _, uid := range pods {
			if _, err := m.files.Lstat(diskLink(filepath.Join(m.root, "pods", string(uid)), name)); err == nil {
				m.csi.use(uid, data.id())
			}
		}
		shown, err := m.files.ReadDir(d.published)
		if ignoreMissing(err) != nil {
			m.log.Warn("pods that have the disk are not found", "volume", name, "error", err)
		}
		for _, s := range shown {
			m.csi.use(pod.UID(s.Name()), data.id())
		}
	}
}
