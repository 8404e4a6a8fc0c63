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

func note(j *journal.Journal, p *v1.Pod, container, decision string, err error) {
	e := journal.Entry{Container: container, Decision: decision}
	if err != nil {
		e.Error = brief(err)
	}
	record(j, p, e)
}

func record(j *journal.Journal, p *v1.Pod, e journal.Entry) {
	e.Subject, e.Component = journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, component
	j.Record(e)
}

// Hints returns the topology hints for the container's devices, or of the devices that it already
// has.
func (m *Manager) Hints(p *v1.Pod, c *v1.Container) topologymanager.Hints {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	out := topologymanager.Hints{}
	for _, r := range requests(p, c) {
		if !m.allocations.isKnown(r.resource) {
			continue
		}
		if a := m.allocations.pods.get(p.UID, c.Name, r.resource); a != nil {
			out[v1.ResourceName(r.resource)] = m.allocations.hintsOf(r.resource, a.devices)
			continue
		}
		s := m.allocations.supply(r.resource, m.allocations.pods.reusable(p, c.Name, r.resource))
		s.request = r.count
		out[v1.ResourceName(r.resource)] = s.hints()
	}
	return out
}

// PodHints returns the topology hints for the devices of all containers of the pod together.
func (m *Manager) PodHints(p *v1.Pod) topologymanager.Hints {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	out := topologymanager.Hints{}
	for resource, count := range podRequests(p) {
		if !m.allocations.isKnown(resource) {
			continue
		}
		has := map[string][]int64{}
		for _, resources := range m.allocations.pods[p.UID] {
			if a := resources[resource]; a != nil {
				maps.Copy(has, a.devices)
			}
		}
		if len(has) >= count {
			out[v1.ResourceName(resource)] = m.allocations.hintsOf(resource, has)
			continue
		}
		held := map[string]bool{}
		for id := range has {
			held[id] = true
		}
		s := m.allocations.supply(resource, held)
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
	var reserved []string
	var err error
	for _, r := range requests(p, c) {
		var ids []string
		var why string
		if ids, why, err = m.reserve(p, c.Name, r, near.Nodes); err != nil {
			break
		}
		if ids != nil {
			reserved = append(reserved, r.resource)
			record(m.journal, p, journal.Entry{Container: c.Name, Decision: fmt.Sprintf("give %s: %s", r.resource, list(ids)), Why: why})
		}
	}
	if len(reserved) == 0 {
		return err
	}
	if err == nil {
		err = m.store.save()
	}
	if err != nil {
		m.allocations.mu.Lock()
		for _, resource := range reserved {
			m.allocations.pods.remove(p.UID, c.Name, resource)
		}
		m.allocations.generation++
		m.allocations.mu.Unlock()
		m.store.saveSoon() // the file may contain the removed allocations
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
	m.allocations.mu.Lock()
	has, known := m.allocations.pods.get(p.UID, container, r.resource), m.allocations.isKnown(r.resource)
	if has != nil || !known {
		m.allocations.mu.Unlock()
		if has != nil && len(has.devices) != r.count {
			note(m.journal, p, container, fmt.Sprintf("keep the %d devices of %s that it has, though it asks for %d", len(has.devices), r.resource, r.count), nil)
		}
		return nil, "", nil
	}
	c, err := m.allocations.candidates(p, container, r, near)
	if err != nil {
		m.allocations.mu.Unlock()
		return nil, "", err
	}
	e := m.allocations.resources[r.resource].endpoint
	m.allocations.mu.Unlock()

	ids = c.choose(func(q preferenceRequest) []string { return e.preferred(m.journal, p, container, q) })

	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	if c, err = m.allocations.candidates(p, container, r, near); err != nil {
		return nil, "", err
	}
	if !c.contains(ids) { // a device became unavailable during the call to the plugin
		ids = c.choose(func(preferenceRequest) []string { return nil })
	}
	a := &allocation{devices: make(map[string][]int64, len(ids))}
	for _, id := range ids {
		a.devices[id] = m.allocations.resources[r.resource].devices[id].nodes
	}
	m.allocations.pods.put(p.UID, container, r.resource, a)
	m.allocations.generation++
	return a.ids(), c.explain(), nil
}

// Release releases the devices of the pod.
func (m *Manager) Release(uid pod.UID) {
	m.releaseWhere(func(has pod.UID) bool { return has == uid })
}

// Retain releases the devices of all pods that are not in keep.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.releaseWhere(func(has pod.UID) bool { return !keep[has] })
}

func (m *Manager) releaseWhere(match func(pod.UID) bool) {
	m.allocations.mu.Lock()
	gone := map[pod.UID]string{}
	maps.DeleteFunc(m.allocations.pods, func(uid pod.UID, has map[string]map[string]*allocation) bool {
		if !match(uid) {
			return false
		}
		gone[uid] = describe(has)
		return true
	})
	if len(gone) == 0 {
		m.allocations.mu.Unlock()
		return
	}
	m.allocations.generation++
	m.allocations.mu.Unlock()
	for uid, what := range gone {
		if s, ok := m.journal.SubjectOf(uid); ok {
			m.journal.Record(journal.Entry{Subject: s, Component: component, Decision: "take back " + what, Why: "the pod has ended, or was refused"})
		}
	}
	// If this write fails, the file has orphaned allocations until the next write.
	m.store.saveOrRetry()
}

// errDisconnected means that the plugin of a resource is not connected.
var errDisconnected = errors.New("the device plugin is not connected")
