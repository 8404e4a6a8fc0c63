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
)

// csiDataFile says, beside what a driver mounts, what that is. Its name and form are the kubelet's.
const csiDataFile = "vol_data.json"

// newSuffix is of a file that is not whole yet.
const newSuffix = ".new"

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
func readCSIData(dir string) (csiData, error) {
	var d csiData
	b, err := os.ReadFile(filepath.Join(dir, csiDataFile))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("%s: %w", filepath.Join(dir, csiDataFile), err)
	}
	if !isElement(d.DriverName) || d.VolumeHandle == "" {
		return d, fmt.Errorf("%s: it names no volume", filepath.Join(dir, csiDataFile))
	}
	return d, nil
}

// writeCSIData writes the file in the directory, which is made, and reports whether there was one before. A kill leaves the old one or the new.
func (m *Manager) writeCSIData(path string, d csiData) (existed bool, err error) {
	b, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	f, err := m.makeFolder(path, 0o750, 0o750)
	if err != nil {
		return false, err
	}
	defer f.Close()
	dir, err := os.OpenRoot(self(int(f.Fd())))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	_, err = dir.Lstat(csiDataFile)
	existed = err == nil
	const temp = csiDataFile + newSuffix
	if err := ignoreMissing(dir.Remove(temp)); err != nil { // of an agent that was killed, or a link that leads elsewhere
		return existed, err
	}
	w, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return existed, err
	}
	_, err = w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		return existed, err
	}
	return existed, dir.Rename(temp, csiDataFile)
}

// removeMounted removes the mount point in the directory, unless it is one still, then the data file and the directory. What is not there is no
// error.
func (m *Manager) removeMounted(dir, name string) error {
	f, err := m.openFolder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	path := filepath.Join(dir, name)
	mounted, err := m.isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("%s is still mounted, though the driver says that it is not", path)
	}
	if err := removeEmpty(int(f.Fd()), name, path); err != nil {
		return err
	}
	for _, file := range []string{csiDataFile + newSuffix, csiDataFile} {
		if err := unix.Unlinkat(int(f.Fd()), file, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "unlink", Path: filepath.Join(dir, file), Err: err}
		}
	}
	parent, err := m.openFolder(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeEmpty(int(parent.Fd()), filepath.Base(dir), dir)
}
