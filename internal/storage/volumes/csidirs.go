package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"

	"berth/internal/host/safepath"
	"berth/internal/pod"
)

// csiDirs are the directories of CSI volumes on this machine. Their paths are the kubelet's, so
// that a node can be migrated in both directions.
type csiDirs struct {
	host  *host
	disks *disks
}

// stageDir returns the directory of the volume's state for all pods; globalmount below it is the
// mount point.
func (d *csiDirs) stageDir(id csiID) string {
	return filepath.Join(d.host.root, "plugins/kubernetes.io/csi", id.driver, hash(id.handle))
}

func (d *csiDirs) stagePath(id csiID) string { return filepath.Join(d.stageDir(id), "globalmount") }

// publishDir returns the volume's directory in the pod's directory; mount below it is the mount
// point.
func publishDir(podDir, specName string) string {
	return filepath.Join(podDir, "volumes", csiPlugin, specName)
}

func publishPath(podDir, specName string) string {
	return filepath.Join(publishDir(podDir, specName), "mount")
}

// disk has the paths of a CSI block volume.
type disk struct {
	staging   string // shared by all pods
	published string // directory of the driver's publish targets, by pod UID
	dir       string // parent of the next two
	data      string // directory of the csiDataFile
	bound     string // directory of a bind mount for each pod, by UID
}

func (d *csiDirs) disksDir() string {
	return filepath.Join(d.host.root, "plugins/kubernetes.io/csi", devicesDir)
}

// disk returns the paths of the persistent volume with this name.
func (d *csiDirs) disk(name string) disk {
	all := d.disksDir()
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

// target returns the path at which the driver publishes the volume for the pod.
func (d *csiDirs) target(v csiVolume) string {
	if v.block {
		return d.disk(v.specName).target(v.pod.UID)
	}
	return publishPath(v.podDir, v.specName)
}

// staging returns the staging path of the volume.
func (d *csiDirs) staging(v csiVolume) string {
	if v.block {
		return d.disk(v.specName).staging
	}
	return d.stagePath(v.id)
}

// isPublished reports whether something is published at the volume's target for the pod.
func (d *csiDirs) isPublished(v csiVolume) bool {
	if v.block {
		number, err := d.disks.published(d.target(v))
		return err == nil && number != 0
	}
	mounted, err := d.host.isMounted(publishPath(v.podDir, v.specName))
	return err == nil && mounted
}

// knownDisks returns the names of disks that have a directory.
func (d *csiDirs) knownDisks() ([]string, error) {
	names := map[string]bool{}
	for _, dir := range []string{d.disksDir(), filepath.Join(d.disksDir(), "publish")} {
		entries, err := d.host.files.ReadDir(dir)
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

// csiDataFile identifies a volume, in a file beside its mount point. Name and format are the
// kubelet's.
const csiDataFile = "vol_data.json"

// csiDataLimit is the maximum size of the file in bytes; that of a volume with the longest names is
// much smaller.
const csiDataLimit = 1 << 20

// csiData is the content of a csiDataFile. In staging directories only the first two fields and the
// last are set.
type csiData struct {
	DriverName   string                        `json:"driverName"`
	VolumeHandle string                        `json:"volumeHandle"`
	SpecVolID    string                        `json:"specVolID,omitempty"`
	NodeName     string                        `json:"nodeName,omitempty"`
	AttachmentID string                        `json:"attachmentID,omitempty"`
	Lifecycle    storagev1.VolumeLifecycleMode `json:"volumeLifecycleMode,omitempty"`
	Label        string                        `json:"seLinuxMountContext,omitempty"`
}

// data returns the content of the volume's csiDataFile for a pod, without the label.
func (v *csiVolume) data(nodeName string) csiData {
	return csiData{
		DriverName: v.id.driver, VolumeHandle: v.id.handle, SpecVolID: v.specName, NodeName: nodeName,
		AttachmentID: v.id.attachment(nodeName), Lifecycle: v.lifecycle(),
	}
}

func (d csiData) id() csiID { return csiID{d.DriverName, d.VolumeHandle} }

// readData reads the csiDataFile in the directory; fs.ErrNotExist if there is none.
func (d *csiDirs) readData(dir string) (csiData, error) {
	var data csiData
	b, err := d.host.files.ReadFile(filepath.Join(dir, csiDataFile), csiDataLimit)
	if err != nil {
		return data, err
	}
	if err := json.Unmarshal(b, &data); err != nil {
		return data, fmt.Errorf("%s: %w", filepath.Join(dir, csiDataFile), err)
	}
	if !safepath.IsElement(data.DriverName) || data.VolumeHandle == "" {
		return data, fmt.Errorf("%s: it names no volume", filepath.Join(dir, csiDataFile))
	}
	return data, nil
}

// writeData writes the csiDataFile in the directory, which it creates, and reports whether the file
// existed. The write is atomic.
func (d *csiDirs) writeData(path string, data csiData) (existed bool, err error) {
	b, err := json.Marshal(data)
	if err != nil {
		return false, err
	}
	if err := d.host.files.Ensure(path, 0o750, 0o750); err != nil {
		return false, err
	}
	file := filepath.Join(path, csiDataFile)
	_, err = d.host.files.Lstat(file)
	existed = err == nil
	return existed, d.host.files.Replace(file, 0o600, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// removeMounted removes the mount point in the directory, unless it is mounted, then the data file
// and the directory. A missing directory is no error.
func (d *csiDirs) removeMounted(dir, name string) error {
	f, err := d.host.files.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	path := filepath.Join(dir, name)
	mounted, err := d.host.isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("%s is still mounted, though the driver says that it is not", path)
	}
	if err := safepath.RemoveEmptyAt(int(f.Fd()), name, path); err != nil {
		return err
	}
	for _, file := range []string{csiDataFile + safepath.NewSuffix, csiDataFile} {
		if err := unix.Unlinkat(int(f.Fd()), file, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "unlink", Path: filepath.Join(dir, file), Err: err}
		}
	}
	parent, err := d.host.files.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return safepath.RemoveEmptyAt(int(parent.Fd()), filepath.Base(dir), dir)
}
