package devicemanager

import (
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/resources/devicemanager/checkpoint"
)

type holdings map[pod.UID]map[string]map[string]*allocation

type allocation struct {
	// devices are the NUMA nodes of each device at the time of allocation.
	devices map[string][]int64
	// response is the plugin's ContainerAllocateResponse as protobuf; nil: not called, or no
	// response yet.
	response []byte
	// restored: allocated before this agent started.
	restored bool
}

func (a *allocation) ids() []string { return slices.Sorted(maps.Keys(a.devices)) }

func (h holdings) get(uid pod.UID, container, resource string) *allocation {
	return h[uid][container][resource]
}

func (h holdings) put(uid pod.UID, container, resource string, a *allocation) {
	if h[uid] == nil {
		h[uid] = map[string]map[string]*allocation{}
	}
	if h[uid][container] == nil {
		h[uid][container] = map[string]*allocation{}
	}
	h[uid][container][resource] = a
}

func (h holdings) remove(uid pod.UID, container, resource string) {
	delete(h[uid][container], resource)
	if len(h[uid][container]) == 0 {
		delete(h[uid], container)
	}
	if len(h[uid]) == 0 {
		delete(h, uid)
	}
}

func (h holdings) of(resource string) iter.Seq2[pod.UID, *allocation] {
	return func(yield func(pod.UID, *allocation) bool) {
		for uid, containers := range h {
			for _, resources := range containers {
				if a := resources[resource]; a != nil && !yield(uid, a) {
					return
				}
			}
		}
	}
}

// describe names the devices of a pod, by resource.
func describe(containers map[string]map[string]*allocation) string {
	all := map[string]map[string][]int64{}
	for _, resources := range containers {
		for resource, a := range resources {
			if all[resource] == nil {
				all[resource] = map[string][]int64{}
			}
			maps.Copy(all[resource], a.devices)
		}
	}
	var out []string
	for _, resource := range slices.Sorted(maps.Keys(all)) {
		out = append(out, resource+": "+list(slices.Sorted(maps.Keys(all[resource]))))
	}
	return strings.Join(out, "; ")
}

func (h holdings) taken(resource string) map[string]bool {
	out := map[string]bool{}
	for _, a := range h.of(resource) {
		for id := range a.devices {
			out[id] = true
		}
	}
	return out
}

// users returns the pods with an allocated device of the resource for which is returns true.
func (h holdings) users(resource string, is func(id string) bool) []pod.UID {
	found := map[pod.UID]bool{}
	for uid, a := range h.of(resource) {
		for id := range a.devices {
			if is(id) {
				found[uid] = true
				break
			}
		}
	}
	return slices.Collect(maps.Keys(found))
}

// reusable returns the devices of the pod's plain init containers before c, without those that a
// long-running container before c has reused.
func (h holdings) reusable(p *v1.Pod, c, resource string) map[string]bool {
	out := map[string]bool{}
	isInit := len(p.Spec.InitContainers)
	i := -1
	for each := range pod.Containers(&p.Spec) {
		i++
		if each.Name == c {
			break
		}
		a := h.get(p.UID, each.Name, resource)
		if a == nil {
			continue
		}
		plain := i < isInit && !lifecycle.IsSidecar(each)
		for id := range a.devices {
			if plain {
				out[id] = true
			} else {
				delete(out, id)
			}
		}
	}
	return out
}

// entries returns the holdings in checkpoint form, sorted.
func (h holdings) entries() []checkpoint.PodDevicesEntry {
	var out []checkpoint.PodDevicesEntry
	for _, uid := range slices.Sorted(maps.Keys(h)) {
		for _, container := range slices.Sorted(maps.Keys(h[uid])) {
			for _, resource := range slices.Sorted(maps.Keys(h[uid][container])) {
				a := h[uid][container][resource]
				out = append(out, checkpoint.PodDevicesEntry{
					PodUID: string(uid), ContainerName: container, ResourceName: resource, DeviceIDs: a.perNUMA(), AllocResp: a.response,
				})
			}
		}
	}
	return out
}

func (a *allocation) perNUMA() checkpoint.DevicesPerNUMA {
	out := checkpoint.DevicesPerNUMA{}
	for _, id := range a.ids() {
		nodes := a.devices[id]
		if len(nodes) == 0 {
			nodes = nowhere
		}
		for _, n := range nodes {
			out[n] = append(out[n], id)
		}
	}
	return out
}

// nowhere is the checkpoint's encoding of a device without a NUMA node.
var nowhere = []int64{-1}

// restore reads checkpoint entries, the kubelet's included.
func restore(entries []checkpoint.PodDevicesEntry) holdings {
	h := holdings{}
	for _, e := range entries {
		a := &allocation{devices: map[string][]int64{}, response: e.AllocResp, restored: true}
		for _, n := range slices.Sorted(maps.Keys(e.DeviceIDs)) {
			for _, id := range e.DeviceIDs[n] {
				nodes := a.devices[id]
				if n >= 0 && !slices.Contains(nodes, n) {
					nodes = append(nodes, n)
				}
				a.devices[id] = nodes
			}
		}
		h.put(pod.UID(e.PodUID), e.ContainerName, e.ResourceName, a)
	}
	return h
}

// contested returns the devices that are allocated to several pods, by resource. Only a checkpoint
// that was edited by hand has any.
func (h holdings) contested() map[string][]string {
	owner, out := map[[2]string]pod.UID{}, map[string][]string{}
	for uid, containers := range h {
		for _, resources := range containers {
			for resource, a := range resources {
				for id := range a.devices {
					key := [2]string{resource, id}
					if before, ok := owner[key]; ok && before != uid && !slices.Contains(out[resource], id) {
						out[resource] = append(out[resource], id)
					}
					owner[key] = uid
				}
			}
		}
	}
	return out
}

type request struct {
	resource string
	count    int
}

// requests returns the container's requests for extended resources, without those that the
// scheduler has mapped to a ResourceClaim (KEP-5004).
func requests(p *v1.Pod, c *v1.Container) []request {
	var out []request
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		q := c.Resources.Limits[name]
		if n := q.Value(); isExtended(string(name)) && n > 0 && !isClaimed(p, c.Name, string(name)) {
			out = append(out, request{string(name), int(min(n, math.MaxInt32))})
		}
	}
	return out
}

func isClaimed(p *v1.Pod, container, resource string) bool {
	s := p.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// podRequests returns the maximum number of devices of each resource that the pod uses at the same
// time: init containers run one after the other, before the other containers, and beside the
// sidecars that were started before them.
func podRequests(p *v1.Pod) map[string]int {
	peak, staying := map[string]int{}, map[string]int{}
	raise := func(resource string, n int) { peak[resource] = max(peak[resource], n) }
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		for _, r := range requests(p, c) {
			if lifecycle.IsSidecar(c) {
				staying[r.resource] += r.count
				raise(r.resource, staying[r.resource])
			} else {
				raise(r.resource, staying[r.resource]+r.count)
			}
		}
	}
	for i := range p.Spec.Containers {
		for _, r := range requests(p, &p.Spec.Containers[i]) {
			staying[r.resource] += r.count
			raise(r.resource, staying[r.resource])
		}
	}
	return peak
}
