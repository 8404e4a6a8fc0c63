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

// csiDataFile says, beside what a driver mounts, what that is. Its name and form are the kubelet's.
const csiDataFile = "vol_data.json"

// csiDataLimit is how long the file can be, in bytes; that of a volume with the longest names is
// much shorter.
const csiDataLimit = 1 << 20

// csiData is the content of a csiDataFile. Beside what is staged it has the first two and the last.
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

// readCSIData reads the file in the directory. That there is none is fs.ErrNotExist.
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

// writeCSIData writes the file in the directory, which is made, and reports whether there was one
// before. A kill leaves the old one or the new.
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

// removeMounted removes the mount point in the directory, unless it is one still, then the data
// file and the directory. What is not there is no error.
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
