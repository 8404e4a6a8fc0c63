package stats

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
)

// Amount is the available part and the capacity of a resource. The zero value is unknown.
type Amount struct{ Available, Capacity uint64 }

// Use is the available part of the machine's and of all pods' resources.
type Use struct {
	Time time.Time
	// Memory and PodsMemory are in bytes; PodsMemory is known if the cgroup of all pods has a
	// limit. Tasks includes threads.
	Memory, PodsMemory, Tasks Amount
	// Free and PodsFree are the bytes that can be allocated before memory is reclaimed, such as
	// file caches.
	Free, PodsFree uint64
}

// Use reads the current usage.
//
// Differs from the kubelet: on cgroup v2 the kubelet's working set of the machine excludes kernel
// memory, so that it may overestimate what is available. Memory.Available is never more than the
// kernel's MemAvailable (proc_meminfo(5)).
func (c *Collector) Use(ctx context.Context) (Use, error) {
	if err := c.acquire(ctx); err != nil {
		return Use{}, err
	}
	defer c.release()
	out := Use{Time: time.Now()}
	if err := c.cgroups.findHierarchy(); err != nil {
		return out, fmt.Errorf("read usage: %w", err)
	}
	root, err := c.cgroups.read("/")
	if err != nil {
		return out, fmt.Errorf("read usage: %w", err)
	}
	pods, err := c.cgroups.readKnown(c.cfg.Class(v1.PodQOSGuaranteed))
	if err != nil {
		return out, fmt.Errorf("read usage: %w", err)
	}
	machine := c.proc.meminfo()
	out.Memory, out.Free = memoryAmount(root, machine), machine.free
	if pods != nil && pods.Memory != nil && pods.Memory.Limit != cgroupstat.Unlimited {
		m := pods.Memory
		out.PodsMemory, out.PodsFree = Amount{m.Limit - min(m.WorkingSet(), m.Limit), m.Limit}, m.Limit-min(m.Usage, m.Limit)
	}
	if n, most := c.proc.tasks(); n > 0 && most > 0 {
		out.Tasks = Amount{uint64(max(most-n, 0)), uint64(most)}
	}
	return out, nil
}

func memoryAmount(root *Reading, m meminfo) Amount {
	if root == nil || root.Memory == nil || m.memory == 0 {
		return Amount{}
	}
	available := m.memory - min(root.Memory.WorkingSet(), m.memory)
	if m.available > 0 {
		available = min(available, m.available)
	}
	return Amount{available, m.memory}
}

// PodUse is the usage of a pod's running containers.
type PodUse struct {
	// Memory is the working set of its cgroup in bytes, Tasks its number of threads.
	Memory, Tasks uint64
	// Containers are working sets in bytes, by container name.
	Containers map[string]uint64
}

// PodUses reads the current usage of the pods with running containers.
func (c *Collector) PodUses(ctx context.Context) (map[pod.UID]PodUse, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	c.postponeForget()
	c.cgroups.last = nil
	r, err := c.cgroups.current()
	if err != nil {
		return nil, err
	}
	out := make(map[pod.UID]PodUse, len(r.Pods))
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Reading == nil {
			continue
		}
		u := PodUse{Containers: map[string]uint64{}}
		if m := p.Reading.Memory; m != nil {
			u.Memory = m.WorkingSet()
		}
		if n := p.Reading.Pids; n != nil {
			u.Tasks = n.Threads
		}
		for _, ct := range p.Containers {
			if ct.Reading != nil && ct.Reading.Memory != nil {
				u.Containers[ct.Name] = ct.Reading.Memory.WorkingSet()
			}
		}
		out[p.UID] = u
	}
	return out, nil
}

// FileSystem is the available part of a file system.
type FileSystem struct {
	Device        uint64 // identifies it
	Space, Inodes Amount // bytes available to non-root users; inodes
}

// FileSystem reads the available part of the path's file system.
func (c *Collector) FileSystem(path string) (FileSystem, error) {
	f, err := c.folders.open(path, unix.O_PATH)
	if err != nil {
		return FileSystem{}, fmt.Errorf("read file system: %w", err)
	}
	defer f.Close()
	s, err := statfsOf(f)
	if err != nil {
		return FileSystem{}, fmt.Errorf("read file system: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return FileSystem{}, fmt.Errorf("read file system: %s: %w", path, err)
	}
	return FileSystem{st.Dev, Amount{s.available, s.capacity}, Amount{s.inodesFree, s.inodes}}, nil
}

// Places are paths in the file systems of pods and images.
type Places struct{ Node, Images, Containers string }

// Places queries the runtime for the locations of images and writable layers.
func (c *Collector) Places(ctx context.Context) (Places, error) {
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return Places{}, fmt.Errorf("image file system: %w", err)
	}
	out := Places{Node: c.cfg.RootDir}
	if of := info.GetImageFilesystems(); len(of) > 0 {
		out.Images = of[0].GetFsId().GetMountpoint()
	}
	if out.Images == "" {
		return out, fmt.Errorf("image file system: the runtime names none")
	}
	out.Containers = out.Images
	if of := info.GetContainerFilesystems(); len(of) > 0 && of[0].GetFsId().GetMountpoint() != "" {
		out.Containers = of[0].GetFsId().GetMountpoint()
	}
	return out, nil
}
