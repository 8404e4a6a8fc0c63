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

// concerns reports whether the pod's containers get allocations: it is Guaranteed and has no
// pod-level resources.
func concerns(p *v1.Pod) bool {
	return !podresource.IsPodLevelResourcesSet(p) && cgroups.QOSClass(p) == v1.PodQOSGuaranteed
}

// isMemory reports whether the resource is memory or hugepages.
func isMemory(name v1.ResourceName) bool {
	return name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// requestOf returns the container's request.
func requestOf(c *v1.Container) request {
	out := request{}
	for name, q := range c.Resources.Requests {
		if size := q.Value(); isMemory(name) && size > 0 {
			out[name] = uint64(size)
		}
	}
	return out
}

// podRequest returns the maximum that the pod's containers need at the same time: all regular
// containers and all sidecars, or a plain init container and the sidecars before it (KEP-753).
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

// hints returns the same hints for each type of the request.
func (r request) hints(list []topologymanager.Hint) topologymanager.Hints {
	out := topologymanager.Hints{}
	for name := range r {
		out[name] = list
	}
	return out
}

// endedBefore returns the plain init containers that have exited when the container starts, in
// order.
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

// wasGivenBack reports whether the container's allocation was released: it is a plain init
// container before a container that has one. Allocations are made in order.
func wasGivenBack(p *v1.Pod, name string, has map[string][]Block) bool {
	for c := range pod.Containers(&p.Spec) {
		if _, ok := has[c.Name]; ok && slices.Contains(endedBefore(p, c.Name), name) {
			return true
		}
	}
	return false
}

// reusable returns what a container can reuse of the exited init containers' allocations.
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

// give returns the blocks of the pod's containers after an allocation to one of them. Reused memory
// is subtracted from the blocks of init containers that will have exited, so that the sum of all
// blocks is what the pod needs at the same time.
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

// String returns the amounts by type: "hugepages-2Mi 4Mi, memory 1Gi".
func (r request) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		out = append(out, fmt.Sprintf("%s %s", name, resource.NewQuantity(int64(r[name]), resource.BinarySI)))
	}
	return strings.Join(out, ", ")
}
