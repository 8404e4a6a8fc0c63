package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// devicesDir is where the disks of pods are found, in the folder of each pod and, by volume and pod, in that of each type of volume.
const devicesDir = "volumeDevices"

// isBlock reports whether pods are given the disk, rather than the files on it.
func isBlock(b bound) bool {
	return ptr.Deref(b.Spec.VolumeMode, v1.PersistentVolumeFilesystem) == v1.PersistentVolumeBlock
}

// mapBound makes the disk behind a persistent volume present for the pod: a bind mount of it, which is the pod's own and is held by a loop device, and
// a link in the pod's folder.
func (m *Manager) mapBound(ctx context.Context, p *v1.Pod, podDir string, b bound) outcome {
	refuse := func(step string, err error) outcome { return outcome{block: true, step: step, err: err} }
	if err := m.checkNodeAffinity(b.PersistentVolume); err != nil {
		return refuse("NodeAffinity check", err)
	}
	if b.Spec.CSI != nil {
		return m.setupCSI(ctx, p, podDir, persistentCSI(b))
	}
	src := b.Spec.Local
	if src == nil {
		return refuse("FindMapperPluginBySpec", fmt.Errorf("persistent volumes of type %s have no volumeMode Block here", sourceName(&b.Spec.PersistentVolumeSource)))
	}
	if slices.Contains(strings.Split(src.Path, "/"), "..") {
		return refuse("", fmt.Errorf("local volume path %q: must not contain \"..\"", src.Path))
	}
	device, number, err := m.findDisk(src.Path)
	if err != nil {
		return refuse("NewBlockVolumeMapper initialization", err)
	}
	fresh, err := m.bindDisk(device, number, filepath.Join(m.localDisks(), b.Name, string(p.UID)))
	if err != nil {
		return refuse("MapBlockVolume", err)
	}
	link := filepath.Join(podDir, devicesDir, localPlugin, b.Name)
	if err := m.ensureLink(device, link); err != nil {
		return refuse("MapBlockVolume", err)
	}
	return outcome{block: true, mounted: Mounted{HostPath: link, ReadOnly: b.readOnly}, fresh: fresh}
}

// localDisks is where the disks of this machine are bound, by volume and pod.
func (m *Manager) localDisks() string {
	return filepath.Join(m.root, "plugins", localPlugin, devicesDir)
}

// findDisk returns the block device that the path leads to, and its number.
func (m *Manager) findDisk(path string) (device string, number uint64, err error) {
	device, err = filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, fmt.Errorf("path %q does not exist: %w", path, err)
	}
	if err != nil {
		return "", 0, err
	}
	number, err = m.diskNumber(device)
	if err == nil && number == 0 {
		err = fmt.Errorf("path %q: only a block device can be used with volumeMode Block", path)
	}
	return device, number, err
}

// diskNumber returns the number of the block device, 0 for what is none.
func diskNumber(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, nil
	}
	return st.Rdev, nil
}

// bindDisk shows the disk at the path and holds it there, unless that is so, and reports whether there was something to do.
func (m *Manager) bindDisk(device string, number uint64, path string) (fresh bool, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o750)
	switch {
	case err == nil:
		err = f.Close()
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err != nil {
		return false, err
	}
	switch shown, err := m.diskNumber(path); {
	case err != nil:
		return false, err
	case shown == number:
		return m.holdDisk(path)
	case shown != 0: // the persistent volume names another one by now
		if err := m.freeDisk(path); err != nil {
			return false, err
		}
		if err := m.mounter.Unmount(path); err != nil {
			return false, err
		}
	}
	if err := m.mounter.Mount(device, path, "", []string{"bind"}); err != nil {
		return false, fmt.Errorf("bind %s: %w", device, err)
	}
	if _, err := m.holdDisk(path); err != nil {
		return false, err
	}
	return true, nil
}

// unmapDisks takes the disks of the pod away, by whatever agent it was given them. Links and folders tell which; nothing of a disk is touched.
func (m *Manager) unmapDisks(ctx context.Context, uid pod.UID, podDir string) error {
	if err := m.unpublishDisks(ctx, uid, podDir); err != nil {
		return err
	}
	volumes, err := os.ReadDir(m.localDisks())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, v := range volumes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		dir, began := filepath.Join(m.localDisks(), v.Name()), time.Now()
		if _, err := os.Lstat(filepath.Join(dir, string(uid))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := m.unbindDisk(dir, string(uid))
		m.operated(ctx, pluginName(localPlugin), UnmapVolume, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	return m.removeFolder(filepath.Join(podDir, devicesDir))
}

func (m *Manager) unbindDisk(volume, uid string) error {
	path := filepath.Join(volume, uid)
	number, err := m.diskNumber(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if number != 0 {
		if err := m.freeDisk(path); err != nil {
			return err
		}
		if err := m.mounter.Unmount(path); err != nil {
			loops, _ := loopsOf("/", path) // those that others have open stay until these are done
			return heldBy(fmt.Errorf("unmount %s: %w", path, err), append(loops, path)...)
		}
	}
	if err := unix.Unlink(path); err != nil {
		return &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	if err := unix.Rmdir(volume); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: volume, Err: err}
	}
	return nil
}
