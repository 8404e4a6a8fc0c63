package volumes

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
	"berth/internal/runtime/crispec"
)

// emptyDirPlugin is the directory name of the volume type ("kubernetes.io/empty-dir" with the slash
// escaped).
const emptyDirPlugin = "kubernetes.io~empty-dir"

// dirVolume is a directory that the agent creates for a volume.
type dirVolume struct {
	dir string
	// marker is the file that exists when the directory is complete.
	marker string
	src    *v1.EmptyDirVolumeSource
}

// folders creates the agent's directories, on disk or in memory.
type folders struct {
	host              *host
	allocatableMemory int64       // bytes; 0: not known
	tmpfsNoswap       func() bool // checks the kernel once
}

// emptyDirs are directories that are created empty and deleted with their pod.
type emptyDirs struct{ folders *folders }

func (k emptyDirs) setup(_ context.Context, v *volume) (outcome, error) {
	src := cmp.Or(v.spec.EmptyDir, &v1.EmptyDirVolumeSource{})
	if !isKnownMedium(src.Medium) {
		return outcome{}, fmt.Errorf("emptyDir medium %q is not known", src.Medium)
	}
	marker := filepath.Join(v.podDir, "plugins", emptyDirPlugin, v.name(), "ready")
	fresh, err := k.folders.ensureDir(v.pod, dirVolume{dir: v.dir(), marker: marker, src: src})
	return outcome{mounted: crispec.Volume{HostPath: v.dir(), SELinuxRelabel: true}, fresh: fresh}, err
}

func isKnownMedium(m v1.StorageMedium) bool {
	return m == v1.StorageMediumDefault || m == v1.StorageMediumMemory || isHugePages(m)
}

// ensureDir creates the directory and reports whether there was something to do. It is complete
// when its marker exists and a memory-backed one is mounted: the marker survives a reboot, memory
// does not.
func (f *folders) ensureDir(p *v1.Pod, d dirVolume) (fresh bool, err error) {
	if err := f.host.files.Ensure(d.dir, 0o750, 0o777); err != nil {
		return false, err
	}
	if d.src.Medium != v1.StorageMediumDefault {
		notMounted, err := f.host.mounter.IsLikelyNotMountPoint(d.dir)
		if err != nil {
			return false, err
		}
		if notMounted {
			if err := f.host.files.Unlink(d.marker); err != nil {
				return false, err
			}
			if err := f.mountMemory(p, d); err != nil {
				return false, err
			}
		}
	}
	marked, err := f.host.files.Make(filepath.Dir(d.marker), 0o750, 0o750)
	if err != nil {
		return false, err
	}
	defer marked.Close()
	marker := filepath.Base(d.marker)
	var st unix.Stat_t
	if unix.Fstatat(int(marked.Fd()), marker, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return false, nil
	}
	if err := f.initRoot(p, d); err != nil {
		return false, err
	}
	fd, err := unix.Openat(int(marked.Fd()), marker, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: d.marker, Err: err}
	}
	return true, unix.Close(fd)
}

func (f *folders) mountMemory(p *v1.Pod, d dirVolume) error {
	kind, options := "tmpfs", f.tmpfsOptions(p, d.src)
	if isHugePages(d.src.Medium) {
		size, err := computePageSize(p, d.src.Medium)
		if err != nil {
			return err
		}
		kind, options = "hugetlbfs", []string{fmt.Sprintf("pagesize=%d", size.Value())}
	}
	if err := f.host.mounter.Mount(kind, d.dir, kind, options); err != nil {
		return fmt.Errorf("mount %s: %w", kind, err)
	}
	return nil
}

// initRoot sets the mode of the volume's root and, for the pod's fsGroup, the group, setgid so that
// new entries inherit it, and group permissions. The volume is new, so there is nothing else to
// change. If the filesystem does not support an fsGroup, the volume does not fail.
func (f *folders) initRoot(p *v1.Pod, d dirVolume) error {
	dir, err := f.host.files.Open(d.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	mode := fs.FileMode(0o777) // by chmod, because mkdir applies the umask
	if d.src.Medium == v1.StorageMediumMemory {
		mode |= fs.ModeSticky // the mode of a new tmpfs
	}
	gid := fsGroup(p)
	if gid == nil {
		return dir.Chmod(mode)
	}
	// The group first: chown clears setgid.
	if err := dir.Chown(-1, int(*gid)); err != nil {
		f.host.log.Warn("volume keeps its group", "pod", p.Namespace+"/"+p.Name, "fsGroup", *gid, "error", err)
	}
	return dir.Chmod(mode | fs.ModeSetgid)
}

func (f *folders) tmpfsOptions(p *v1.Pod, src *v1.EmptyDirVolumeSource) []string {
	var options []string
	if size := computeTmpfsSize(f.allocatableMemory, p, src); size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	if f.tmpfsNoswap() {
		options = append(options, "noswap")
	}
	return options
}

// computeTmpfsSize returns the size in bytes of a memory-backed volume: the minimum of the node's
// allocatable memory, the pod's memory limit and the volume's sizeLimit, as far as they are set
// (KEP-1967); 0 if none is. A pod with a container without a limit has none.
func computeTmpfsSize(allocatable int64, p *v1.Pod, src *v1.EmptyDirVolumeSource) int64 {
	bounds := []int64{allocatable, cgroups.PodMemoryLimit(p)}
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

// TmpfsKnowsNoswap reports whether the kernel's tmpfs supports the option noswap (Linux 6.4). It
// configures a filesystem without mounting it.
func TmpfsKnowsNoswap() bool {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.FsconfigSetFlag(fd, "noswap") == nil
}

func isHugePages(m v1.StorageMedium) bool {
	return m == v1.StorageMediumHugePages || strings.HasPrefix(string(m), string(v1.StorageMediumHugePagesPrefix))
}

// computePageSize returns the page size of a pod's volume: that of the medium, which the pod must
// request, or the only one that the pod requests, at pod level or in its containers (Kubernetes
// documentation, "Manage HugePages"; KEP-2837).
func computePageSize(p *v1.Pod, medium v1.StorageMedium) (resource.Quantity, error) {
	var lists []v1.ResourceList
	if r := p.Spec.Resources; r != nil {
		lists = append(lists, r.Requests, r.Limits)
	}
	for _, c := range containersOf(p) {
		lists = append(lists, c.Resources.Requests, c.Resources.Limits)
	}
	var requested []string
	for _, list := range lists {
		for name := range list {
			if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok && !slices.Contains(requested, size) {
				requested = append(requested, size)
			}
		}
	}
	slices.Sort(requested)
	if size, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)); ok {
		if !slices.Contains(requested, size) {
			return resource.Quantity{}, fmt.Errorf("medium %q: no container of the pod requests %s%s", medium, v1.ResourceHugePagesPrefix, size)
		}
		requested = []string{size}
	}
	if len(requested) != 1 {
		return resource.Quantity{}, fmt.Errorf("medium %q needs containers that request huge pages of one size, this pod requests %d: use medium HugePages-<size>", medium, len(requested))
	}
	q, err := resource.ParseQuantity(requested[0])
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("size of huge pages %q: %w", requested[0], err)
	}
	return q, nil
}
