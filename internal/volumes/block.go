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

	"berth/internal/crispec"
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
	if err := m.files.EnsureLink(device, link); err != nil {
		return refuse("MapBlockVolume", err)
	}
	return outcome{block: true, mounted: crispec.Volume{HostPath: link, ReadOnly: b.readOnly}, fresh: fresh}
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
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return "", 0, &fs.PathError{Op: "stat", Path: device, Err: err}
	}
	if number = m.numberOf(device, &st); number == 0 {
		return "", 0, fmt.Errorf("path %q: only a block device can be used with volumeMode Block", path)
	}
	return device, number, nil
}

// numberOf returns the number of a block device, 0 for what is none.
func numberOf(_ string, st *unix.Stat_t) uint64 {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return st.Rdev
}

// shownDisk returns the number of the disk that is shown at a path of the agent's own, 0 for what is none.
func (m *Manager) shownDisk(path string) (uint64, error) {
	st, err := m.files.Lstat(path)
	if err != nil {
		return 0, err
	}
	return m.numberOf(path, &st), nil
}

// bindDisk shows the disk at the path and holds it there, unless that is so, and reports whether there was something to do.
func (m *Manager) bindDisk(device string, number uint64, path string) (fresh bool, err error) {
	if err := m.files.Ensure(filepath.Dir(path), 0o750, 0o750); err != nil {
		return false, err
	}
	f, err := m.files.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o750)
	switch {
	case err == nil:
		err = f.Close()
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err != nil {
		return false, err
	}
	switch shown, err := m.shownDisk(path); {
	case err != nil:
		return false, err
	case shown == number:
		return m.holdShown(path)
	case shown != 0: // the persistent volume names another one by now
		if err := m.freeDisk(path); err != nil {
			return false, err
		}
		if err := m.mounter.Unmount(path); err != nil {
			return false, err
		}
	}
	if err := m.mounter.Mount(device, path, "", []string{"bind"}); err != nil {
		return false, fmt.Errorf("mount %s: %w", device, err)
	}
	if _, err := m.holdShown(path); err != nil {
		return false, err
	}
	return true, nil
}

// holdShown holds the disk that is shown at the path, unless it is held, and reports whether there was something to do.
func (m *Manager) holdShown(path string) (fresh bool, err error) {
	disk, err := m.files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false, err
	}
	defer disk.Close()
	return m.holdDisk(disk)
}

// unmapDisks takes the disks of the pod away, by whatever agent it was given them. Links and folders tell which; nothing of a disk is touched.
func (m *Manager) unmapDisks(ctx context.Context, uid pod.UID, podDir string) error {
	if err := m.unpublishDisks(ctx, uid, podDir); err != nil {
		return err
	}
	volumes, err := m.files.ReadDir(m.localDisks())
	if err := ignoreMissing(err); err != nil {
		return err
	}
	for _, v := range volumes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		dir, began := filepath.Join(m.localDisks(), v.Name()), time.Now()
		if _, err := m.files.Lstat(filepath.Join(dir, string(uid))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := m.unbindDisk(dir, string(uid))
		m.operated(ctx, pluginName(localPlugin), UnmapVolume, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	return m.files.Remove(filepath.Join(podDir, devicesDir))
}

func (m *Manager) unbindDisk(volume, uid string) error {
	path := filepath.Join(volume, uid)
	number, err := m.shownDisk(path)
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
			real, _ := m.files.Real(path)
			loops, _ := loopsOf("/", real) // those that others have open stay until these are done
			return heldBy(fmt.Errorf("unmount %s: %w", path, err), append(loops, path)...)
		}
	}
	if err := m.files.Unlink(path); err != nil {
		return err
	}
	if err := m.files.RemoveEmpty(volume); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}
