package memorymanager

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/resources/topologymanager"
)

// concerns reports whether containers of the pod are given memory: it is Guaranteed, and states no
// resources at pod level.
func concerns(p *v1.Pod) bool {
	return !podresource.IsPodLevelResourcesSet(p) && cgroups.QOSClass(p) == v1.PodQOSGuaranteed
}

// isMemory reports whether the resource is a type of memory.
func isMemory(name v1.ResourceName) bool {
	return name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// requestOf returns what a container asks for.
func requestOf(c *v1.Container) request {
	out := request{}
	for name, q := range c.Resources.Requests {
		if size := q.Value(); isMemory(name) && size > 0 {
			out[name] = uint64(size)
		}
	}
	return out
}

// podRequest returns what the containers of a pod need at most at a time: all regular ones and all
// sidecars, or a plain init container and the sidecars before it (KEP-753).
func podRequest(p *v1.Pod) request {
	running, out := request{}, request{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		want := requestOf(c)
		if lifecycle.IsSidecar(c) {
			running.add(want)
			want = request{}
		}
		want.add(running)
		out.raise(want)
	}
	for i := range p.Spec.Containers {
		running.add(requestOf(&p.Spec.Containers[i]))
	}
	out.raise(running)
	return out
}

func (r request) add(other request) {
	for name, size := range other {
		r[name] += size
	}
}

func (r request) raise(other request) {
	for name, size := range other {
		r[name] = max(r[name], size)
	}
}

// hints says the same of each type of the request.
func (r request) hints(list []topologymanager.Hint) topologymanager.Hints {
	out := topologymanager.Hints{}
	for name := range r {
		out[name] = list
	}
	return out
}

// endedBefore returns the plain init containers that have ended when c runs, in their order.
func endedBefore(p *v1.Pod, name string) []string {
	var out []string
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.Name == name {
			return out
		}
		if !lifecycle.IsSidecar(c) {
			out = append(out, c.Name)
		}
	}
	return out
}

// wasGivenBack reports whether the container had memory once: a plain init container without any,
// while one after it has. Containers are given theirs in order.
func wasGivenBack(p *v1.Pod, name string, has map[string][]Block) bool {
	for c := range pod.Containers(&p.Spec) {
		if _, ok := has[c.Name]; ok && slices.Contains(endedBefore(p, c.Name), name) {
			return true
		}
	}
	return false
}

// reusable returns what a container can have of the plain init containers before it.
func reusable(ended []string, has map[string][]Block) reuse {
	out := reuse{}
	for _, name := range ended {
		for _, b := range has[name] {
			on := b.nodes()
			if out[on] == nil {
				out[on] = request{}
			}
			out[on][b.Type] += b.Size
		}
	}
	return out
}

// give returns the blocks of a pod's containers after one more was given what it asks for. What it
// can have of those that will have ended is taken off their blocks, so that the sum of all blocks
// is what the pod needs at a time.
func give(p *v1.Pod, name string, want request, on topologymanager.Nodes, has map[string][]Block) map[string][]Block {
	out := maps.Clone(has)
	if out == nil {
		out = map[string][]Block{}
	}
	left := maps.Clone(want)
	for _, ended := range endedBefore(p, name) {
		blocks := slices.Clone(out[ended])
		for i := range blocks {
			if b := &blocks[i]; b.nodes() == on {
				again := min(left[b.Type], b.Size)
				b.Size -= again
				left[b.Type] -= again
			}
		}
		if blocks != nil {
			out[ended] = blocks
		}
	}
	var blocks []Block
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		blocks = append(blocks, Block{NUMAAffinity: on.List(), Type: kind, Size: want[kind]})
	}
	out[name] = blocks
	return out
}

// String returns the amounts, by type: "hugepages-2Mi 4Mi, memory 1Gi".
func (r request) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		out = append(out, fmt.Sprintf("%s %s", name, resource.NewQuantity(int64(r[name]), resource.BinarySI)))
	}
	return strings.Join(out, ", ")
}
