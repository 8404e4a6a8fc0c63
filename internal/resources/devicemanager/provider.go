package devicemanager

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/topologymanager"
)

// component is the component of journal entries.
const component = "devices"

func (m *Manager) note(p *v1.Pod, container, decision string, err error) {
	e := journal.Entry{Container: container, Decision: decision}
	if err != nil {
		e.Error = brief(err)
	}
	m.record(p, e)
}

func (m *Manager) record(p *v1.Pod, e journal.Entry) {
	e.Subject, e.Component = journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, component
	m.Journal.Record(e)
}

// Hints returns the topology hints for the container's devices, or of the devices that it already
// has.
func (m *Manager) Hints(p *v1.Pod, c *v1.Container) topologymanager.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := topologymanager.Hints{}
	for _, r := range requests(p, c) {
		if !m.isKnown(r.resource) {
			continue
		}
		if a := m.pods.get(p.UID, c.Name, r.resource); a != nil {
			out[v1.ResourceName(r.resource)] = m.hintsOf(r.resource, a.devices)
			continue
		}
		s := m.supply(r.resource, m.pods.reusable(p, c.Name, r.resource))
		s.request = r.count
		out[v1.ResourceName(r.resource)] = s.hints()
	}
	return out
}

// PodHints returns the topology hints for the devices of all containers of the pod together.
func (m *Manager) PodHints(p *v1.Pod) topologymanager.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := topologymanager.Hints{}
	for resource, count := range podRequests(p) {
		if !m.isKnown(resource) {
			continue
		}
		has := map[string][]int64{}
		for _, resources := range m.pods[p.UID] {
			if a := resources[resource]; a != nil {
				maps.Copy(has, a.devices)
			}
		}
		if len(has) >= count {
			out[v1.ResourceName(resource)] = m.hintsOf(resource, has)
			continue
		}
		own := map[string]bool{}
		for id := range has {
			own[id] = true
		}
		s := m.supply(resource, own)
		s.request = count
		out[v1.ResourceName(resource)] = s.hints()
	}
	return out
}

// Allocate allocates the devices that the container requests, near the hint if possible. It asks
// plugins for their preference, each for at most 10 s; Prepare calls their Allocate. On an error
// the allocations of the container do not change.
//
// Differs from the kubelet: an existing allocation stays, whatever happens to the devices, their
// plugin or the requested number, so that a running pod is not rejected after a restart of the
// agent.
func (m *Manager) Allocate(p *v1.Pod, c *v1.Container, near topologymanager.Hint) error {
	var given []string
	var err error
	for _, r := range requests(p, c) {
		var ids []string
		var why string
		if ids, why, err = m.reserve(p, c.Name, r, near.Nodes); err != nil {
			break
		}
		if ids != nil {
			given = append(given, r.resource)
			m.record(p, journal.Entry{Container: c.Name, Decision: fmt.Sprintf("give %s: %s", r.resource, list(ids)), Why: why})
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
		m.wakeUp() // the file may contain the removed allocations
	}
	return err
}

// list names the first 16 devices.
func list(ids []string) string {
	const most = 16
	if len(ids) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return strings.Join(ids, ", ")
}

// reserve allocates devices of one resource and returns them with the reason for the choice. It
// returns nil if the container has an allocation already, or if no plugin offers the resource.
func (m *Manager) reserve(p *v1.Pod, container string, r request, near topologymanager.Nodes) (ids []string, why string, err error) {
	m.mu.Lock()
	has, known := m.pods.get(p.UID, container, r.resource), m.isKnown(r.resource)
	if has != nil || !known {
		m.mu.Unlock()
		if has != nil && len(has.devices) != r.count {
			m.note(p, container, fmt.Sprintf("keep the %d devices of %s that it has, though it asks for %d", len(has.devices), r.resource, r.count), nil)
		}
		return nil, "", nil
	}
	c, err := m.candidates(p, container, r, near)
	if err != nil {
		m.mu.Unlock()
		return nil, "", err
	}
	e := m.resources[r.resource].endpoint
	m.mu.Unlock()

	ids = c.choose(func(q preferenceRequest) []string { return m.preferred(e, p, container, q) })

	m.mu.Lock()
	defer m.mu.Unlock()
	if c, err = m.candidates(p, container, r, near); err != nil {
		return nil, "", err
	}
	if !c.contains(ids) { // a device became unavailable during the call to the plugin
		ids = c.choose(func(preferenceRequest) []string { return nil })
	}
	a := &allocation{devices: make(map[string][]int64, len(ids))}
	for _, id := range ids {
		a.devices[id] = m.resources[r.resource].devices[id].nodes
	}
	m.pods.put(p.UID, container, r.resource, a)
	m.generation++
	return a.ids(), c.explain(), nil
}

// Release releases the devices of the pod.
func (m *Manager) Release(uid pod.UID) {
	m.drop(func(has pod.UID) bool { return has == uid })
}

// Retain releases the devices of all pods that are not in keep.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.drop(func(has pod.UID) bool { return !keep[has] })
}

func (m *Manager) drop(goes func(pod.UID) bool) {
	m.mu.Lock()
	gone := map[pod.UID]string{}
	maps.DeleteFunc(m.pods, func(uid pod.UID, has map[string]map[string]*allocation) bool {
		if !goes(uid) {
			return false
		}
		gone[uid] = describe(has)
		return true
	})
	if len(gone) == 0 {
		m.mu.Unlock()
		return
	}
	m.generation++
	m.mu.Unlock()
	for uid, what := range gone {
		if s, ok := m.Journal.SubjectOf(uid); ok {
			m.Journal.Record(journal.Entry{Subject: s, Component: component, Decision: "take back " + what, Why: "the pod has ended, or was refused"})
		}
	}
	// If this write fails, the file has orphaned allocations until the next write.
	if err := m.save(); err != nil {
		m.wakeUp()
	}
}

// errAway means that the plugin of a resource is not connected.
var errAway = errors.New("the device plugin is not connected")
