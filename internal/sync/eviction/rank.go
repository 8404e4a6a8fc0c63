package eviction

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/observe/stats"
)

// candidate is a pod that may be evicted, with what it takes of what is short.
type candidate struct {
	pod *v1.Pod // with the resources that it was allotted
	// wanted is the pod as its source has it.
	wanted *v1.Pod
	// measured is false for a pod of which nothing runs yet.
	measured      bool
	used, request uint64
	priority      int32
	critical      bool
	// leaving is set of a pod that is evicted already, or has ended, and still runs; ending, too,
	// if nothing can hasten that.
	leaving, ending bool
	// containers are what the regular and init containers use, as far as that is known.
	containers []containerUse
}

// containerUse is what a container takes of what is short, and what it asked for.
type containerUse struct {
	name          string
	used, request uint64
}

// over is how much more the pod takes than it asked for; it may be negative.
func (c *candidate) over() int64 {
	return int64(min(c.used, math.MaxInt64)) - int64(min(c.request, math.MaxInt64))
}

// rank sorts pods: the one that is to be evicted first in front. For memory and files, first those
// that take more than they asked for, then those of lower priority, then those that take most
// beyond what they asked for; for tasks, lower priority, then more tasks. Those of which nothing is
// known begin. Among equals the younger one goes first.
//
// Differs from the kubelet: inodes are ranked by inodes alone (there the request of bytes is taken
// off them), and equals have an order.
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

// class is what decides before the priority: pods of which nothing is known, those that take more
// than they asked for, and the others. Nobody asks for tasks.
func (c *candidate) class(what v1.ResourceName) int {
	switch {
	case !c.measured:
		return 0
	case what == pids || c.used > c.request:
		return 1
	}
	return 2
}

// newCandidate returns the pod without what it uses. p has the resources that it was allotted.
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

// requestOf returns what the pod asks for, in bytes: as a whole or by its containers, and its
// overhead if that is anything.
func requestOf(p *v1.Pod, what v1.ResourceName) uint64 {
	q := podresource.PodRequests(p, podresource.PodResourcesOptions{ExcludeOverhead: true})[what]
	if q.IsZero() {
		return 0
	}
	q.Add(p.Spec.Overhead[what])
	return uint64(max(q.Value(), 0))
}

// asksAsAWhole reports whether the pod itself has a request of memory.
func asksAsAWhole(p *v1.Pod) bool {
	if p.Spec.Resources == nil {
		return false
	}
	_, ok := p.Spec.Resources.Requests[memory]
	return ok
}

// eachContainer calls f for the pod's regular and init containers.
func eachContainer(p *v1.Pod, f func(c *v1.Container)) {
	for i := range p.Spec.Containers {
		f(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		f(&p.Spec.InitContainers[i])
	}
}

// addProcesses adds what the pod uses of memory or tasks.
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

// addFiles adds what the pod has of files on a disk.
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
