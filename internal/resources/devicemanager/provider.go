package devicemanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/topologymanager"
)

// component is who decides, in the journal.
const component = "devices"

func (m *Manager) note(p *v1.Pod, container, decision string, err error) {
	e := journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: component, Container: container, Decision: decision,
	}
	if err != nil {
		e.Error = brief(err)
	}
	m.Journal.Record(e)
}

// isKnownLocked reports whether a resource is one that plugins give, or have given.
func (m *Manager) isKnownLocked(resource string) bool {
	if m.resources[resource] != nil || m.gone[resource] {
		return true
	}
	for range m.pods.of(resource) {
		return true
	}
	return false
}

// Hints says near which NUMA nodes the devices for the container could lie; where they lie, if it
// has them already.
func (m *Manager) Hints(p *v1.Pod, c *v1.Container) topologymanager.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := topologymanager.Hints{}
	for _, r := range requests(p, c) {
		if !m.isKnownLocked(r.resource) {
			continue
		}
		if a := m.pods.get(p.UID, c.Name, r.resource); a != nil {
			out[v1.ResourceName(r.resource)] = m.hintsOfLocked(r.resource, a.devices)
			continue
		}
		s := m.supplyLocked(r.resource, m.pods.reusable(p, c.Name, r.resource))
		s.request = r.count
		out[v1.ResourceName(r.resource)] = s.hints()
	}
	return out
}

// PodHints says near which NUMA nodes the devices for all containers of the pod could lie together.
func (m *Manager) PodHints(p *v1.Pod) topologymanager.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := topologymanager.Hints{}
	for resource, count := range podRequests(p) {
		if !m.isKnownLocked(resource) {
			continue
		}
		has := map[string][]int64{}
		for _, resources := range m.pods[p.UID] {
			if a := resources[resource]; a != nil {
				maps.Copy(has, a.devices)
			}
		}
		if len(has) >= count {
			out[v1.ResourceName(resource)] = m.hintsOfLocked(resource, has)
			continue
		}
		own := map[string]bool{}
		for id := range has {
			own[id] = true
		}
		s := m.supplyLocked(resource, own)
		s.request = count
		out[v1.ResourceName(resource)] = s.hints()
	}
	return out
}

// hintsOfLocked returns the hints of devices that are given already. Where they lie is known even
// while their plugin is away.
func (m *Manager) hintsOfLocked(resource string, devices map[string][]int64) []topologymanager.Hint {
	s := supply{request: len(devices)}
	if r := m.resources[resource]; r != nil {
		for id, d := range r.devices {
			if _, ok := devices[id]; !ok {
				s.all = append(s.all, maskOf(d.nodes, m.Nodes))
			}
		}
	}
	for _, nodes := range devices {
		s.reusable = append(s.reusable, maskOf(nodes, m.Nodes))
	}
	s.all = append(s.all, s.reusable...)
	return s.hints()
}

func (m *Manager) supplyLocked(resource string, reusable map[string]bool) supply {
	r := m.resources[resource]
	if r == nil {
		return supply{}
	}
	var s supply
	taken := m.pods.taken(resource)
	for id, d := range r.devices {
		mask := maskOf(d.nodes, m.Nodes)
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

// Allocate gives the container the devices that it asks for, near the hint where that can be. Its
// plugins are asked which they would rather give, for 10 s at most, and told by Prepare. On an error
// the container has what it had before.
//
// Differs from the kubelet: what a container has already stays, whatever has become of the devices,
// of their plugin or of the number that it asks for: a pod that runs is not refused after a restart
// of the agent.
func (m *Manager) Allocate(p *v1.Pod, c *v1.Container, near topologymanager.Hint) error {
	var given []string
	var err error
	for _, r := range requests(p, c) {
		var ids []string
		if ids, err = m.reserve(p, c.Name, r, near.Nodes); err != nil {
			break
		}
		if ids != nil {
			given = append(given, r.resource)
			m.note(p, c.Name, fmt.Sprintf("give %s: %s", r.resource, list(ids)), nil)
		}
	}
	if len(given) == 0 {
		return err
	}
	if err == nil {
		err = m.save()
	}
	if err != nil {
		m.mu.Lock()
		for _, resource := range given {
			m.pods.remove(p.UID, c.Name, resource)
		}
		m.generation++
		m.mu.Unlock()
		m.wakeUp() // the file may have them
	}
	return err
}

// list names the first few of devices.
func list(ids []string) string {
	const most = 16
	if len(ids) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return strings.Join(ids, ", ")
}

// reserve gives the container devices of one resource, and returns them; nil if it has some, or if
// no plugin gives any.
func (m *Manager) reserve(p *v1.Pod, container string, r request, near topologymanager.Nodes) ([]string, error) {
	m.mu.Lock()
	has, known := m.pods.get(p.UID, container, r.resource), m.isKnownLocked(r.resource)
	if has != nil || !known {
		m.mu.Unlock()
		if has != nil && len(has.devices) != r.count {
			m.note(p, container, fmt.Sprintf("keep the %d devices of %s that it has, though it asks for %d", len(has.devices), r.resource, r.count), nil)
		}
		return nil, nil
	}
	w, err := m.wishLocked(p, container, r, near)
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	e := m.resources[r.resource].endpoint
	m.mu.Unlock()

	ids := w.choose(func(q question) []string { return m.preferred(e, p, container, q) })

	m.mu.Lock()
	defer m.mu.Unlock()
	if w, err = m.wishLocked(p, container, r, near); err != nil {
		return nil, err
	}
	if !w.offers(ids) { // a device went while the plugin was asked
		ids = w.choose(func(question) []string { return nil })
	}
	a := &allocation{devices: make(map[string][]int64, len(ids))}
	for _, id := range ids {
		a.devices[id] = m.resources[r.resource].devices[id].nodes
	}
	m.pods.put(p.UID, container, r.resource, a)
	m.generation++
	return a.ids(), nil
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

// wishLocked returns what the container asks for, and fails if that is not there.
func (m *Manager) wishLocked(p *v1.Pod, container string, r request, near topologymanager.Nodes) (wish, error) {
	known := m.resources[r.resource]
	if known == nil {
		return wish{}, fmt.Errorf("cannot allocate unregistered device %s", r.resource)
	}
	w := wish{count: r.count, near: near, nodes: map[string]topologymanager.Nodes{}}
	taken, reusable, healthy := m.pods.taken(r.resource), m.pods.reusable(p, container, r.resource), 0
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
		w.nodes[id] = maskOf(d.nodes, m.Nodes)
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

// Release takes back what the pod has.
func (m *Manager) Release(uid pod.UID) {
	m.drop(func(has pod.UID) bool { return has == uid })
}

// Retain takes back what pods have that are not to be kept: nobody knows them any more.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.drop(func(has pod.UID) bool { return !keep[has] })
}

func (m *Manager) drop(goes func(pod.UID) bool) {
	m.mu.Lock()
	before := len(m.pods)
	maps.DeleteFunc(m.pods, func(uid pod.UID, _ map[string]map[string]*allocation) bool { return goes(uid) })
	if len(m.pods) == before {
		m.mu.Unlock()
		return
	}
	m.generation++
	m.mu.Unlock()
	// What the file still has then belongs to nobody, and goes at a later write.
	if err := m.save(); err != nil {
		m.wakeUp()
	}
}

// errAway says that the plugin of a resource is not connected.
var errAway = errors.New("the device plugin is not connected")
