package stats

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Extent selects the pod's files to measure. Each part costs a walk.
type Extent struct {
	// Volumes are names of emptyDir and configMap volumes.
	Volumes []string
	// Containers also selects the files of containers and of the pod itself.
	Containers bool
}

// Local is the local disk usage of a pod.
type Local struct {
	// Volumes are the existing volumes, by name.
	Volumes map[string]Size
	// Containers are the running containers, by name.
	Containers map[string]ContainerFiles
	// Own is the usage outside of containers: the pod's own logs, its hosts file.
	Own Size
	// Spaces are the disk file systems of all this, as before the walks; each once.
	Spaces []Space
}

// ContainerFiles is the disk usage of a container.
type ContainerFiles struct {
	// Rootfs is the writable layer of the running container, Logs its log with rotated files.
	Rootfs, Logs Size
	// Dedicated is true if the layer is on another file system than the root directory: on one for
	// images.
	Dedicated bool
}

// Space is the free space of a file system.
type Space struct {
	// Path is in the file system, Device identifies it.
	Path   string
	Device uint64
	Free   uint64 // bytes
}

// ReadSpace returns the free space of the path's file system.
func (c *Collector) ReadSpace(path string) (Space, error) { return c.folders.space(path) }

// IsEphemeral reports whether the volume counts as ephemeral storage of its pod (Kubernetes
// documentation, "Local ephemeral storage"): volumes in memory do not.
func IsEphemeral(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault
}

// Local measures files of a pod now, one directory after the other; s is the newest observation of
// the pod. Nothing is cached: the measurements for a summary are too old to enforce limits. Missing
// files count as 0. On error it returns what was measured so far.
func (c *Collector) Local(ctx context.Context, p *v1.Pod, s *pod.Status, of Extent) (Local, error) {
	out := Local{Volumes: map[string]Size{}, Containers: map[string]ContainerFiles{}}
	dir := c.folders.podDir(p.UID)
	out.addSpace(c.folders, dir)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if !slices.Contains(of.Volumes, v.Name) {
			continue
		}
		used, err := c.folders.volumeSize(ctx, filepath.Join(dir, "volumes"), v)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		out.Volumes[v.Name] = used
		if err != nil {
			return out, err
		}
	}
	if !of.Containers {
		return out, nil
	}
	logs := c.folders.logsOf(p.Namespace, p.Name, p.UID)
	out.addSpace(c.folders, logs)
	out.Own = c.folders.logsIn(logs).Plus(c.folders.hostsFile(dir))
	paths, err := c.containerCgroups(ctx, p.UID)
	if err != nil {
		return out, err
	}
	mounted := c.layers.read()
	root, known := out.addSpace(c.folders, c.cfg.RootDir)
	for i := range s.Containers {
		ct := &s.Containers[i]
		if _, seen := out.Containers[ct.Name]; seen { // newest first
			continue
		}
		files := ContainerFiles{Logs: c.folders.logsIn(filepath.Join(logs, ct.Name))}
		out.Containers[ct.Name] = files
		if ct.State != pod.StateRunning {
			continue // its layer is not mounted
		}
		if upper := c.layers.upperDir(ctx, mounted, ct.ID, paths[string(ct.ID)]); upper != "" {
			device, found := out.addSpace(c.folders, upper)
			files.Dedicated = known && found && device != root
			if files.Rootfs, err = c.folders.walk(ctx, upper); err != nil && !errors.Is(err, fs.ErrNotExist) {
				out.Containers[ct.Name] = files
				return out, err
			}
		}
		out.Containers[ct.Name] = files
	}
	return out, nil
}

// addSpace adds the file system of the path, if it exists and its device was not added.
func (l *Local) addSpace(d folders, path string) (device uint64, ok bool) {
	s, err := d.space(path)
	if err != nil {
		return 0, false
	}
	if !slices.ContainsFunc(l.Spaces, func(o Space) bool { return o.Device == s.Device }) {
		l.Spaces = append(l.Spaces, s)
	}
	return s.Device, true
}

// containerCgroups returns the cgroups of the pod's containers by ID; none without cgroups.
func (c *Collector) containerCgroups(ctx context.Context, uid pod.UID) (map[string]string, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	return c.cgroups.containersOf(uid)
}

// volumeSize returns the usage of a volume; dir is the directory of the pod's volumes. A tmpfs
// needs no walk.
func (d folders) volumeSize(ctx context.Context, dir string, v *v1.Volume) (Size, error) {
	plugin := "kubernetes.io~empty-dir"
	if v.ConfigMap != nil {
		plugin = "kubernetes.io~configmap"
	}
	dir = filepath.Join(dir, plugin, v.Name)
	if v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumMemory {
		f, err := d.statfs(dir)
		if err != nil {
			return Size{}, err
		}
		if f.kind == unix.TMPFS_MAGIC {
			return Size{f.capacity - f.free, f.inodes - f.inodesFree}, nil
		}
	}
	return d.walk(ctx, dir)
}
