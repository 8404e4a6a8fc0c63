package devicemanager

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/devicemanager/checkpoint"
	"berth/internal/resources/topologymanager"
)

// ledger holds the resources and their allocations. The Manager's mu guards it.
type ledger struct {
	machine    topologymanager.Nodes
	resources  map[string]*resource // offered by plugins, now or until forgetAfter ago
	gone       map[string]bool      // offered before that
	heard      map[string]bool      // registered since this agent started
	pods       holdings
	generation uint64 // counts changes to the checkpoint's content
}

func newLedger(machine topologymanager.Nodes) ledger {
	return ledger{machine: machine, resources: map[string]*resource{}, gone: map[string]bool{}, heard: map[string]bool{}, pods: holdings{}}
}

// isKnown reports whether plugins offer the resource, or have offered or allocated it.
func (l *ledger) isKnown(resource string) bool {
	if l.resources[resource] != nil || l.gone[resource] {
		return true
	}
	for range l.pods.of(resource) {
		return true
	}
	return false
}

// hintsOf returns the hints for devices that are already allocated. Their NUMA nodes are known even
// while their plugin is unavailable.
func (l *ledger) hintsOf(resource string, devices map[string][]int64) []topologymanager.Hint {
	s := supply{request: len(devices)}
	if r := l.resources[resource]; r != nil {
		for id, d := range r.devices {
			if _, ok := devices[id]; !ok {
				s.all = append(s.all, maskOf(d.nodes, l.machine))
			}
		}
	}
	for _, nodes := range devices {
		s.reusable = append(s.reusable, maskOf(nodes, l.machine))
	}
	s.all = append(s.all, s.reusable...)
	return s.hints()
}

// supply returns the devices of the resource for a request.
func (l *ledger) supply(resource string, reusable map[string]bool) supply {
	r := l.resources[resource]
	if r == nil {
		return supply{}
	}
	var s supply
	taken := l.pods.taken(resource)
	for id, d := range r.devices {
		mask := maskOf(d.nodes, l.machine)
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

// wish returns the container's request with the available devices. It fails if they do not suffice.
func (l *ledger) wish(p *v1.Pod, container string, r request, near topologymanager.Nodes) (wish, error) {
	known := l.resources[r.resource]
	if known == nil {
		return wish{}, fmt.Errorf("cannot allocate unregistered device %s", r.resource)
	}
	w := wish{count: r.count, near: near, nodes: map[string]topologymanager.Nodes{}}
	taken, reusable, healthy := l.pods.taken(r.resource), l.pods.reusable(p, container, r.resource), 0
	for id, d := range known.devices {
		if !d.healthy {
			continue
		}
		healthy++
		switch {
		case reusable[id]:
			w.reusable = append(w.reusable, id)
		case !taken[id]:
			w.free = append(w.free, id)
		default:
			continue
		}
		w.nodes[id] = maskOf(d.nodes, l.machine)
	}
	if healthy == 0 {
		return wish{}, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", r.resource)
	}
	if need := r.count - len(w.reusable); need > len(w.free) {
		return wish{}, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", r.resource, need, len(w.free))
	}
	slices.Sort(w.reusable)
	slices.Sort(w.free)
	return w, nil
}

// offers reports whether all these devices can be allocated.
func (w wish) offers(ids []string) bool {
	for _, id := range ids {
		_, free := slices.BinarySearch(w.free, id)
		_, reusable := slices.BinarySearch(w.reusable, id)
		if !free && !reusable {
			return false
		}
	}
	return true
}

// hasRoom returns an error if the resource would exceed maxResources.
func (l *ledger) hasRoom(resource string) error {
	if l.resources[resource] == nil && !l.gone[resource] && len(l.resources)+len(l.gone) >= maxResources {
		return fmt.Errorf("the node has %d extended resources of device plugins already, which is the most: %s is not taken", maxResources, resource)
	}
	return nil
}

// expire moves resources whose plugins have been unavailable for forgetAfter to gone. It returns
// them and the time of the next expiry; zero: none is due.
func (l *ledger) expire(now time.Time) (gone []string, next time.Time) {
	for name, r := range l.resources {
		if r.endpoint != nil {
			continue
		}
		at := r.stopped.Add(forgetAfter)
		if !at.After(now) {
			gone = append(gone, name)
			delete(l.resources, name)
			l.gone[name] = true
			l.generation++
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return gone, next
}

// data returns the ledger in checkpoint form.
//
// Differs from the kubelet: it contains the resources that are gone, too. Otherwise a Node that was
// not updated yet would keep its amounts of them under the next agent.
func (l *ledger) data() checkpoint.Data {
	d := checkpoint.Data{PodDeviceEntries: l.pods.entries(), RegisteredDevices: map[string][]string{}}
	for name := range l.gone {
		d.RegisteredDevices[name] = []string{}
	}
	for name, r := range l.resources {
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
	*allocation
	response []byte // a copy of allocation.response, read under mu
	resource string
	ids      []string
	endpoint *endpoint // nil: no plugin is connected
	prestart bool
	heard    bool // a plugin has registered since this agent started
}

// held returns the container's allocations, sorted by resource.
func (l *ledger) held(uid pod.UID, container string) []held {
	var out []held
	has := l.pods[uid][container]
	for _, resource := range slices.Sorted(maps.Keys(has)) {
		a := has[resource]
		h := held{allocation: a, response: a.response, resource: resource, ids: a.ids(), heard: l.heard[resource]}
		if r := l.resources[resource]; r != nil {
			h.endpoint, h.prestart = r.endpoint, r.prestart
		}
		out = append(out, h)
	}
	return out
}
