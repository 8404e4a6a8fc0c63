package devicemanager

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/devicemanager/checkpoint"
	"berth/internal/resources/topologymanager"
)

// allocations holds the resources and their allocations. mu guards all fields but machine; the
// caller of a method holds it.
type allocations struct {
	machine topologymanager.Nodes

	mu         sync.Mutex
	resources  map[string]*resource // offered by plugins, now or until forgetAfter ago
	gone       map[string]bool      // offered before that
	registered map[string]bool      // registered since this agent started
	pods       holdings
	generation uint64 // counts changes to the checkpoint's content
}

func newAllocations(machine topologymanager.Nodes) *allocations {
	return &allocations{machine: machine, resources: map[string]*resource{}, gone: map[string]bool{}, registered: map[string]bool{}, pods: holdings{}}
}

// isKnown reports whether plugins offer the resource, or have offered or allocated it.
func (a *allocations) isKnown(resource string) bool {
	if a.resources[resource] != nil || a.gone[resource] {
		return true
	}
	for range a.pods.of(resource) {
		return true
	}
	return false
}

// hintsOf returns the hints for devices that are already allocated. Their NUMA nodes are known even
// while their plugin is unavailable.
func (a *allocations) hintsOf(resource string, devices map[string][]int64) []topologymanager.Hint {
	s := supply{request: len(devices)}
	if r := a.resources[resource]; r != nil {
		for id, d := range r.devices {
			if _, ok := devices[id]; !ok {
				s.all = append(s.all, maskOf(d.nodes, a.machine))
			}
		}
	}
	for _, nodes := range devices {
		s.reusable = append(s.reusable, maskOf(nodes, a.machine))
	}
	s.all = append(s.all, s.reusable...)
	return s.hints()
}

// supply returns the devices of the resource for a request.
func (a *allocations) supply(resource string, reusable map[string]bool) supply {
	r := a.resources[resource]
	if r == nil {
		return supply{}
	}
	var s supply
	taken := a.pods.taken(resource)
	for id, d := range r.devices {
		mask := maskOf(d.nodes, a.machine)
		s.all = append(s.all, mask)
		switch {
		case !d.healthy:
		case reusable[id]:
			s.reusable = append(s.reusable, mask)
		case !taken[id]:
			s.free = append(s.free, mask)
		}
	}
	return s
}

// candidates returns the devices that the container's request may get. It fails if they do not
// suffice.
func (a *allocations) candidates(p *v1.Pod, container string, r request, near topologymanager.Nodes) (candidates, error) {
	offered := a.resources[r.resource]
	if offered == nil {
		return candidates{}, fmt.Errorf("cannot allocate unregistered device %s", r.resource)
	}
	c := candidates{count: r.count, near: near, nodes: map[string]topologymanager.Nodes{}}
	taken, reusable, healthy := a.pods.taken(r.resource), a.pods.reusable(p, container, r.resource), 0
	for id, d := range offered.devices {
		if !d.healthy {
			continue
		}
		healthy++
		switch {
		case reusable[id]:
			c.reusable = append(c.reusable, id)
		case !taken[id]:
			c.free = append(c.free, id)
		default:
			continue
		}
		c.nodes[id] = maskOf(d.nodes, a.machine)
	}
	if healthy == 0 {
		return candidates{}, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", r.resource)
	}
	if need := r.count - len(c.reusable); need > len(c.free) {
		return candidates{}, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", r.resource, need, len(c.free))
	}
	slices.Sort(c.reusable)
	slices.Sort(c.free)
	return c, nil
}

// contains reports whether all these devices can be allocated.
func (c candidates) contains(ids []string) bool {
	for _, id := range ids {
		_, free := slices.BinarySearch(c.free, id)
		_, reusable := slices.BinarySearch(c.reusable, id)
		if !free && !reusable {
			return false
		}
	}
	return true
}

func (a *allocations) hasCapacity(resource string) error {
	if a.resources[resource] == nil && !a.gone[resource] && len(a.resources)+len(a.gone) >= maxResources {
		return fmt.Errorf("the node has %d extended resources of device plugins already, which is the most: %s is not taken", maxResources, resource)
	}
	return nil
}

// expire moves resources whose plugins have been unavailable for forgetAfter to gone. It returns
// them and the time of the next expiry; zero: none is due.
func (a *allocations) expire(now time.Time) (gone []string, next time.Time) {
	for name, r := range a.resources {
		if r.endpoint != nil {
			continue
		}
		at := r.stopped.Add(forgetAfter)
		if !at.After(now) {
			gone = append(gone, name)
			delete(a.resources, name)
			a.gone[name] = true
			a.generation++
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return gone, next
}

// data returns the allocations in checkpoint form.
//
// Differs from the kubelet: it contains the resources that are gone, too. Otherwise a Node that was
// not updated yet would keep its amounts of them under the next agent.
func (a *allocations) data() checkpoint.Data {
	d := checkpoint.Data{PodDeviceEntries: a.pods.entries(), RegisteredDevices: map[string][]string{}}
	for name := range a.gone {
		d.RegisteredDevices[name] = []string{}
	}
	for name, r := range a.resources {
		ids := []string{}
		for _, id := range slices.Sorted(maps.Keys(r.devices)) {
			if r.devices[id].healthy {
				ids = append(ids, id)
			}
		}
		d.RegisteredDevices[name] = ids
	}
	return d
}

// held is a container's allocation of one resource, with the plugin's endpoint.
type held struct {
	allocation *allocation
	response   []byte // a copy of allocation.response, read under mu
	resource   string
	ids        []string
	endpoint   *endpoint // nil: no plugin is connected
	prestart   bool
	registered bool // a plugin has registered since this agent started
}

// held returns the container's allocations, sorted by resource.
func (a *allocations) held(uid pod.UID, container string) []held {
	var out []held
	has := a.pods[uid][container]
	for _, resource := range slices.Sorted(maps.Keys(has)) {
		got := has[resource]
		h := held{allocation: got, response: got.response, resource: resource, ids: got.ids(), registered: a.registered[resource]}
		if r := a.resources[resource]; r != nil {
			h.endpoint, h.prestart = r.endpoint, r.prestart
		}
		out = append(out, h)
	}
	return out
}
