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

// ledger is what there is, and who has it. It does nothing by itself; the Manager's lock guards it.
type ledger struct {
	machine    topologymanager.Nodes
	resources  map[string]*resource // those that plugins offer, or did until some minutes ago
	gone       map[string]bool      // those that they offered before that
	heard      map[string]bool      // those that a plugin has registered since this agent began
	pods       holdings
	generation uint64 // counts what changes the file
}

func newLedger(machine topologymanager.Nodes) ledger {
	return ledger{machine: machine, resources: map[string]*resource{}, gone: map[string]bool{}, heard: map[string]bool{}, pods: holdings{}}
}

// isKnown reports whether a resource is one that plugins give, or have given.
func (l *ledger) isKnown(resource string) bool {
	if l.resources[resource] != nil || l.gone[resource] {
		return true
	}
	for range l.pods.of(resource) {
		return true
	}
	return false
}

// hintsOf returns the hints of devices that are given already. Where they lie is known even while
// their plugin is away.
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

// supply returns what there is of the resource, for a request.
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

// wish returns what the container asks for, and fails if that is not there.
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

// offers reports whether all these devices can be given.
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

// hasRoom refuses a resource that is one too many.
func (l *ledger) hasRoom(resource string) error {
	if l.resources[resource] == nil && !l.gone[resource] && len(l.resources)+len(l.gone) >= maxResources {
		return fmt.Errorf("the node has %d extended resources of device plugins already, which is the most: %s is not taken", maxResources, resource)
	}
	return nil
}

// expire forgets the resources whose plugins have been away for too long, and returns them and when
// that is to be looked at again; zero: not before something happens.
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

// data returns all in the form of the file.
//
// Differs from the kubelet: it has the resources that are gone, too. A Node that was not told that
// they are would otherwise keep its amounts of them under the next agent.
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

// held is what a container has of one resource, and who gives it.
type held struct {
	*allocation
	response []byte // of the allocation, when it was looked at
	resource string
	ids      []string
	endpoint *endpoint // nil: none is connected
	prestart bool
	heard    bool // a plugin has registered since this agent began
}

// held returns what the container has, by resource, in order.
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
