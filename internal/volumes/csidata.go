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
func writeCSIData(dir string, d csiData) (existed bool, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return false, err
	}
	file := filepath.Join(dir, csiDataFile)
	_, err = os.Lstat(file)
	existed = err == nil
	b, err := json.Marshal(d)
	if err != nil {
		return existed, err
	}
	temp := file + newSuffix
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return existed, err
	}
	return existed, os.Rename(temp, file)
}

// removeMounted removes the mount point in the directory, unless it is one still, then the data file and the directory. What is not there is no
// error.
func (m *Manager) removeMounted(dir, name string) error {
	path := filepath.Join(dir, name)
	_, err := os.Lstat(path)
	if err == nil {
		mounted, err := m.mounter.IsMountPoint(path)
		if err != nil {
			return err
		}
		if mounted {
			return fmt.Errorf("%s is still mounted, though the driver says that it is not", path)
		}
		if err := unix.Rmdir(path); err != nil {
			return &fs.PathError{Op: "rmdir", Path: path, Err: err}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, file := range []string{csiDataFile + newSuffix, csiDataFile} {
		if err := os.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
