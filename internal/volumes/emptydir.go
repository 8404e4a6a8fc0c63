package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cgroups"
)

// emptyDirPlugin is the directory name of the volume type ("kubernetes.io/empty-dir" with the slash escaped).
const emptyDirPlugin = "kubernetes.io~empty-dir"

// setupEmptyDir makes the volume, which is done when its marker exists and, for a memory-backed one, its tmpfs is mounted: the
// marker outlives a reboot, the tmpfs does not.
func (m *Manager) setupEmptyDir(p *v1.Pod, podDir, name string, src *v1.EmptyDirVolumeSource) outcome {
	dir := filepath.Join(podDir, "volumes", emptyDirPlugin, name)
	marker := filepath.Join(podDir, "plugins", emptyDirPlugin, name, "ready")
	done := outcome{mounted: Mounted{HostPath: dir, SELinuxRelabel: true}}
	switch src.Medium {
	case v1.StorageMediumDefault, v1.StorageMediumMemory:
	default:
		return outcome{err: fmt.Errorf("emptyDir medium %q is not supported yet", src.Medium)}
	}

	if err := makeDir(dir, 0o750, 0o777); err != nil {
		return outcome{err: err}
	}
	if src.Medium == v1.StorageMediumMemory {
		notMounted, err := m.mounter.IsLikelyNotMountPoint(dir)
		if err != nil {
			return outcome{err: err}
		}
		if notMounted {
			if err := os.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return outcome{err: err}
			}
			if err := m.mounter.Mount("tmpfs", dir, "tmpfs", m.tmpfsOptions(p, src)); err != nil {
				return outcome{err: fmt.Errorf("mount tmpfs: %w", err)}
			}
		}
	}
	if _, err := os.Stat(marker); err == nil {
		return done
	}

	if err := m.ownRoot(p, dir); err != nil {
		return outcome{err: err}
	}
	if err := makeDir(filepath.Dir(marker), 0o750, 0o750); err != nil {
		return outcome{err: err}
	}
	if err := createFile(marker); err != nil {
		return outcome{err: err}
	}
	done.fresh = true
	return done
}

// makeDir makes the directory with mode last, and those above it that are missing with mode parents. An existing one is left as it is.
func makeDir(path string, parents, last fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), parents); err != nil {
		return err
	}
	if err := os.Mkdir(path, last); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// ownRoot gives the volume's root its mode, and the pod's fsGroup: the group, setgid so that what is made inside inherits it, and
// read, write and search for the group. The volume is new, so there is nothing else to change. A filesystem that refuses an
// fsGroup does not fail the volume.
func (m *Manager) ownRoot(p *v1.Pod, dir string) error {
	mode := fs.FileMode(0o777) // by chmod, because the umask cut what mkdir was given, and a tmpfs comes as 1777
	if p.Spec.SecurityContext == nil || p.Spec.SecurityContext.FSGroup == nil {
		return os.Chmod(dir, mode)
	}
	gid := *p.Spec.SecurityContext.FSGroup
	// The group first: changing it clears setgid.
	if err := os.Lchown(dir, -1, int(gid)); err != nil {
		m.log.Warn("volume keeps its group", "pod", p.Namespace+"/"+p.Name, "fsGroup", gid, "error", err)
	}
	return os.Chmod(dir, mode|fs.ModeSetgid)
}

func (m *Manager) tmpfsOptions(p *v1.Pod, src *v1.EmptyDirVolumeSource) []string {
	var options []string
	if size := computeTmpfsSize(m.allocatableMemory, p, src); size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	if m.tmpfsNoswap() {
		options = append(options, "noswap")
	}
	return options
}

// computeTmpfsSize returns the size in bytes of a memory-backed volume: the least of the node's allocatable memory, the pod's
// memory limit and the volume's sizeLimit, as far as they are set (KEP-1967); 0 when none is.
func computeTmpfsSize(allocatable int64, p *v1.Pod, src *v1.EmptyDirVolumeSource) int64 {
	bounds := []int64{allocatable, cgroups.SummedMemoryLimit(p)}
	if src.SizeLimit != nil {
		bounds = append(bounds, src.SizeLimit.Value())
	}
	var size int64
	for _, b := range bounds {
		if b > 0 && (size == 0 || b < size) {
			size = b
		}
	}
	return size
}

// tmpfsKnowsNoswap reports whether the kernel's tmpfs has the option noswap (Linux 6.4). It configures a filesystem without ever
// mounting it.
func tmpfsKnowsNoswap() bool {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.FsconfigSetFlag(fd, "noswap") == nil
}
