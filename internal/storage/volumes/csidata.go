package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"

	"berth/internal/host/safepath"
)

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

func (d csiData) id() csiID { return csiID{d.DriverName, d.VolumeHandle} }

// readCSIData reads the file in the directory; fs.ErrNotExist if there is none.
func (c *csiShared) readCSIData(dir string) (csiData, error) {
	var d csiData
	b, err := c.files.ReadFile(filepath.Join(dir, csiDataFile), csiDataLimit)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("%s: %w", filepath.Join(dir, csiDataFile), err)
	}
	if !safepath.IsElement(d.DriverName) || d.VolumeHandle == "" {
		return d, fmt.Errorf("%s: it names no volume", filepath.Join(dir, csiDataFile))
	}
	return d, nil
}

// writeCSIData writes the file in the directory, which it creates, and reports whether the file
// existed. The write is atomic.
func (c *csiShared) writeCSIData(path string, d csiData) (existed bool, err error) {
	b, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	if err := c.files.Ensure(path, 0o750, 0o750); err != nil {
		return false, err
	}
	file := filepath.Join(path, csiDataFile)
	_, err = c.files.Lstat(file)
	existed = err == nil
	return existed, c.files.Replace(file, 0o600, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// removeMounted removes the mount point in the directory, unless it is mounted, then the data file
// and the directory. A missing directory is no error.
func (c *csiShared) removeMounted(dir, name string) error {
	f, err := c.files.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	path := filepath.Join(dir, name)
	mounted, err := c.isMounted(path)
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
	parent, err := c.files.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return safepath.RemoveEmptyAt(int(parent.Fd()), filepath.Base(dir), dir)
}
