package eviction

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/observe/stats"
)

// candidate is a pod that may be evicted, with its usage of the resource that is short.
type candidate struct {
	pod *v1.Pod // with its allocation
	// wanted is the source's version of the pod.
	wanted *v1.Pod
	// measured is false for a pod without running containers.
	measured      bool
	used, request uint64
	priority      int32
	critical      bool
	// leaving: the pod is evicted already, or has terminated, and containers still run; ending:
	// also nothing can speed that up.
	leaving, ending bool
	// containers has the known usage of regular and init containers.
	containers []containerUse
}

// containerUse is a container's usage of the resource that is short, and its request.
type containerUse struct {
	name          string
	used, request uint64
}

// over is the pod's usage above its request; it may be negative.
func (c *candidate) over() int64 {
	return int64(min(c.used, math.MaxInt64)) - int64(min(c.request, math.MaxInt64))
}

// rank sorts pods in the order of eviction. For memory and files: pods above their requests first,
// then lower priority, then usage above the request. For tasks: lower priority, then more tasks.
// Unmeasured pods come first. Among equals, the younger one is first.
//
// Differs from the kubelet: inodes are ranked by inodes only (the kubelet subtracts the request in
// bytes), and equals have an order.
func rank(what v1.ResourceName, pods []candidate) {
	slices.SortStableFunc(pods, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(a.class(what), b.class(what)),
			cmp.Compare(a.priority, b.priority),
			cmp.Compare(b.over(), a.over()),
			b.pod.CreationTimestamp.Compare(a.pod.CreationTimestamp.Time),
			cmp.Compare(a.pod.UID, b.pod.UID),
		)
	})
}

// class is compared before the priority: unmeasured pods, pods above their requests, others. There
// are no requests of tasks.
func (c *candidate) class(what v1.ResourceName) int {
	switch {
	case !c.measured:
		return 0
	case what == pids || c.used > c.request:
		return 1
	}
	return 2
}

// newCandidate returns the pod without its usage. p has its allocation.
func newCandidate(p *v1.Pod, what v1.ResourceName) candidate {
	c := candidate{pod: p}
	if p.Spec.Priority != nil {
		c.priority = *p.Spec.Priority
	}
	if what == memory || what == storage {
		c.request = requestOf(p, what)
	}
	return c
}

// requestOf returns the pod's request in bytes, at pod level or of its containers, plus the
// overhead if the request is not zero.
func requestOf(p *v1.Pod, what v1.ResourceName) uint64 {
	q := podresource.PodRequests(p, podresource.PodResourcesOptions{ExcludeOverhead: true})[what]
	if q.IsZero() {
		return 0
	}
	q.Add(p.Spec.Overhead[what])
	return uint64(max(q.Value(), 0))
}

func hasPodLevelRequest(p *v1.Pod) bool {
	if p.Spec.Resources == nil {
		return false
	}
	_, ok := p.Spec.Resources.Requests[memory]
	return ok
}

func eachContainer(p *v1.Pod, f func(c *v1.Container)) {
	for i := range p.Spec.Containers {
		f(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		f(&p.Spec.InitContainers[i])
	}
}

func (c *candidate) addProcesses(what v1.ResourceName, u *stats.PodUse) {
	c.measured = true
	if what == pids {
		c.used = u.Tasks
		return
	}
	c.used = u.Memory
	eachContainer(c.pod, func(ct *v1.Container) {
		if used, ok := u.Containers[ct.Name]; ok {
			c.containers = append(c.containers, containerUse{ct.Name, used, requestOfContainer(ct, memory)})
		}
	})
}

func (c *candidate) addFiles(what v1.ResourceName, of files, u *stats.Local) {
	c.measured = true
	amount := func(s stats.Size) uint64 {
		if what == inodes {
			return s.Inodes
		}
		return s.Bytes
	}
	if of&logs != 0 {
		c.used += amount(u.Own)
	}
	if of&volumes != 0 {
		for _, s := range u.Volumes {
			c.used += amount(s)
		}
	}
	eachContainer(c.pod, func(ct *v1.Container) {
		f, ok := u.Containers[ct.Name]
		if !ok {
			return
		}
		if of&rootfs != 0 {
			c.used += amount(f.Rootfs)
		}
		if of&logs != 0 {
			c.used += amount(f.Logs)
		}
		if what == storage {
			c.containers = append(c.containers, containerUse{ct.Name, f.Rootfs.Bytes + f.Logs.Bytes, requestOfContainer(ct, storage)})
		}
	})
}

func requestOfContainer(ct *v1.Container, what v1.ResourceName) uint64 {
	q := ct.Resources.Requests[what]
	return uint64(max(q.Value(), 0))
}
