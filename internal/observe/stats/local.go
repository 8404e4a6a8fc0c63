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

// Extent says what of a pod's files is wanted. Each of it costs a walk.
type Extent struct {
	// Volumes are names of emptyDir and configMap volumes.
	Volumes []string
	// Containers also asks for the files of containers and of the pod itself.
	Containers bool
}

// Local is what files of a pod take on this machine.
type Local struct {
	// Volumes are those that are there, by their names.
	Volumes map[string]Size
	// Containers are those that run, by their names.
	Containers map[string]ContainerFiles
	// Own is what belongs to no container: the pod's own logs, its hosts file.
	Own Size
	// Spaces are the file systems on disks that all this is in, as they were before they were
	// walked; each once.
	Spaces []Space
}

// ContainerFiles is what files of a container take.
type ContainerFiles struct {
	// Rootfs is its writable layer while it runs, Logs its log with the parts that were rotated.
	Rootfs, Logs Size
	// Dedicated says that the layer is on another file system than the root directory: on one for
	// images.
	Dedicated bool
}

// Space is what is free on a file system.
type Space struct {
	// Path is in it, Device tells it from others.
	Path   string
	Device uint64
	Free   uint64 // bytes
}

// ReadSpace returns the free space of the file system that the path is in.
func (c *Collector) ReadSpace(path string) (Space, error) { return c.folders.space(path) }

// IsEphemeral reports whether the volume counts as ephemeral storage of its pod (Kubernetes
// documentation, "Local ephemeral storage"): what is in memory does not.
func IsEphemeral(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault
}

// Local measures files of a pod now, one folder after the other; s is what the runtime showed of
// the pod last. Nothing is remembered of it: what was measured for a summary is too old to hold a
// pod to its limits. What is not there takes nothing. With an error comes what was seen until then.
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
	root, known := out.addSpace(c.folders, c.RootDir)
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

// addSpace adds the file system of the path, if it is there and the first of its device.
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

// containerCgroups returns the cgroups of the pod's containers by their ids; none where there are
// no cgroups.
func (c *Collector) containerCgroups(ctx context.Context, uid pod.UID) (map[string]string, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	return c.cgroups.containersOf(uid)
}

// volumeSize returns what a volume takes of its medium; dir is the folder of the pod's volumes. A
// tmpfs knows it without a walk.
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
