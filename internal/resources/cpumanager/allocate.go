package cpumanager

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/topologymanager"
)

// component is the component of journal entries.
const component = "cpus"

// Hints returns the topology hints for the container's exclusive CPUs, or of the CPUs that it
// already has. It is nil for a container without exclusive CPUs.
//
// Differs from the kubelet: an existing allocation stays even if the container now requests another
// number; the container is not rejected after a restart of the agent.
func (m *CPUManager) Hints(p *v1.Pod, c *v1.Container) topologymanager.Hints {
	n := m.exclusive(p, c)
	now := m.now()
	own := now.owned[p.UID][c.Name]
	switch {
	case !own.IsEmpty():
		return m.hints(demand{cpus: own.Size(), held: own})
	case n == 0:
		return nil
	}
	return m.hints(m.demand(now, n, reusable(p, c, now.owned[p.UID])))
}

// PodHints returns the topology hints for all containers of the pod together.
func (m *CPUManager) PodHints(p *v1.Pod) topologymanager.Hints {
	now := m.now()
	own := now.owned[p.UID]
	n := peak(p, func(c *v1.Container) int { return m.exclusive(p, c) })
	held := union(own)
	d := m.demand(now, max(n, held.Size()), held)
	complete := true
	for c := range pod.Containers(&p.Spec) {
		complete = complete && (m.exclusive(p, c) == 0 || !own[c.Name].IsEmpty())
	}
	switch {
	case n == 0 && held.IsEmpty():
		return nil
	case complete:
		d = demand{cpus: held.Size(), held: held}
	}
	return m.hints(d)
}

func (m *CPUManager) hints(d demand) topologymanager.Hints {
	return topologymanager.Hints{v1.ResourceCPU: computeHints(m.layout, m.options, d)}
}

// exclusive returns the number of exclusive CPUs that the container requests.
func (m *CPUManager) exclusive(p *v1.Pod, c *v1.Container) int {
	if !m.isStatic() {
		return 0
	}
	return exclusiveCPUs(p, c, m.cfg.Gates)
}

// demand returns a request for n CPUs with the available ones. With full-pcpus-only those are cores
// without a thread that another container uses.
//
// Differs from the kubelet: threads whose sibling is allocated do not count; they can be left from
// a time without the option.
func (m *CPUManager) demand(now pools, n int, held cpuset.CPUSet) demand {
	free := now.shared.Difference(m.reserved)
	if m.options[fullPhysicalCPUs] {
		whole := m.layout.wholeCores(free.Union(held))
		free, held = free.Intersection(whole), held.Intersection(whole)
	}
	return demand{cpus: n, held: held, free: free.Difference(held)}
}

// Allocate allocates exclusive CPUs to the container. When it returns nil, the allocation is
// durable. An existing allocation stays.
//
// With full-pcpus-only, the error may be a *topologymanager.Refusal; other errors are those of the
// choice or of writing the file.
func (m *CPUManager) Allocate(p *v1.Pod, c *v1.Container, near topologymanager.Hint) error {
	m.deciding.Lock()
	defer m.deciding.Unlock()
	now := m.now()
	if own := now.owned[p.UID][c.Name]; !own.IsEmpty() {
		m.record(p, c, journal.Entry{Decision: fmt.Sprintf("keep CPUs %s", own), Why: "the container has them from before"})
		return nil
	}
	n := m.exclusive(p, c)
	if n == 0 {
		return nil
	}
	m.metrics.requests.Inc()
	d := m.demand(now, n, reusable(p, c, now.owned[p.UID]))
	cpus, err := m.pick(d, near)
	var next pools
	if err == nil {
		next = now.give(p.UID, c.Name, cpus)
		if err = m.write(next); err != nil {
			m.wake() // the file may contain it nevertheless
		}
	}
	if err != nil {
		m.metrics.errors.Inc()
		m.record(p, c, journal.Entry{Decision: fmt.Sprintf("refuse %d CPUs", n), Why: m.explain(d, near, now), Error: err.Error()})
		return err
	}
	m.publish(next)
	m.countAlignment(cpus)
	m.record(p, c, journal.Entry{Decision: fmt.Sprintf("give CPUs %s", cpus), Why: m.explain(d, near, next)})
	return nil
}

// pick chooses the CPUs, and enforces full-pcpus-only.
func (m *CPUManager) pick(d demand, near topologymanager.Hint) (cpuset.CPUSet, error) {
	if !m.options[fullPhysicalCPUs] {
		return choose(m.layout, m.options, d, near)
	}
	available := d.free.Size() + d.held.Size()
	refusal := &topologymanager.Refusal{Reason: "SMTAlignmentError"}
	if d.cpus%m.layout.threads != 0 {
		refusal.Message = fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", d.cpus, m.layout.threads)
	} else if d.cpus <= available {
		if cpus := m.pickCores(d, near); !cpus.IsEmpty() {
			return cpus, nil
		}
	}
	if refusal.Message == "" {
		refusal.Message = fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d",
			available, d.cpus, m.layout.threads)
	}
	m.failed(physicalCPU)
	return cpuset.New(), refusal
}

// pickCores chooses whole cores. If cores have different numbers of threads, a choice can end
// within a core: then it is made from the cores whose size divides the request.
func (m *CPUManager) pickCores(d demand, near topologymanager.Hint) cpuset.CPUSet {
	even := m.layout.ofThreads(m.layout.threads)
	for _, d := range []demand{d, {d.cpus, d.held.Intersection(even), d.free.Intersection(even)}} {
		cpus, err := choose(m.layout, m.options, d, near)
		if err == nil && m.layout.wholeCores(cpus).Equals(cpus) {
			return cpus
		}
	}
	return cpuset.New()
}

// explain describes the input of a choice and the remaining shared CPUs.
func (m *CPUManager) explain(d demand, near topologymanager.Hint, left pools) string {
	free := d.free.Union(d.held)
	said := []string{fmt.Sprintf("it asks for %d of the %d free CPUs %s", d.cpus, free.Size(), orNone(free))}
	if !d.held.IsEmpty() {
		said = append(said, fmt.Sprintf("%s are those of init containers before it", d.held))
	}
	if near.Nodes != 0 {
		wish := "NUMA nodes wanted: "
		if near.Preferred {
			wish = "NUMA nodes preferred: "
		}
		said = append(said, wish+nodesText(near.Nodes))
	}
	if len(m.options) > 0 {
		said = append(said, "options: "+m.options.String())
	}
	said = append(said, fmt.Sprintf("shared CPUs are %s", orNone(left.shared)))
	return strings.Join(said, "; ")
}

func nodesText(nodes topologymanager.Nodes) string {
	var ids []int
	for id := range maxNode + 1 {
		if nodes&(1<<id) != 0 {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...).String()
}

func orNone(cpus cpuset.CPUSet) string {
	if cpus.IsEmpty() {
		return "none"
	}
	return cpus.String()
}

func (m *CPUManager) record(p *v1.Pod, c *v1.Container, e journal.Entry) {
	e.Subject = journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
	e.Component, e.Container = component, c.Name
	m.cfg.Journal.Record(e)
}

// Release returns the CPUs of the pod to the shared pool. All its containers must have exited.
func (m *CPUManager) Release(uid pod.UID) {
	m.deciding.Lock()
	defer m.deciding.Unlock()
	m.releaseLocked(uid)
}

// Retain releases the CPUs of all pods that are not in keep. Call it when all pods are known.
func (m *CPUManager) Retain(keep map[pod.UID]bool) {
	m.deciding.Lock()
	defer m.deciding.Unlock()
	m.releaseLocked(m.strangers(keep)...)
}

// strangers returns the pods with an allocation that are not in keep. It also drops their handouts.
func (m *CPUManager) strangers(keep map[pod.UID]bool) []pod.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []pod.UID
	for uid := range m.pools.owned {
		if !keep[uid] {
			out = append(out, uid)
		}
	}
	for uid := range m.handed {
		if !keep[uid] {
			delete(m.handed, uid)
		}
	}
	return out
}

// releaseLocked releases the CPUs of the pods, with one write. If the write fails, the release
// holds in memory and the next write persists it; a new agent would release the pods again.
// deciding must be held.
func (m *CPUManager) releaseLocked(uids ...pod.UID) {
	next, changed := m.now(), false
	for _, uid := range uids {
		m.forget(uid)
		if len(next.owned[uid]) == 0 {
			continue
		}
		var freed cpuset.CPUSet
		next, freed = next.release(uid)
		changed = true
		if s, ok := m.cfg.Journal.SubjectOf(uid); ok {
			m.cfg.Journal.Record(journal.Entry{
				Subject: s, Component: component, Decision: fmt.Sprintf("take CPUs %s back", freed),
				Why: fmt.Sprintf("the pod has ended, or was refused; shared CPUs are %s", next.shared),
			})
		} else {
			m.cfg.Log.Info("CPUs of a pod that is gone are shared again", "pod", uid, "cpus", freed.String())
		}
	}
	if !changed {
		return
	}
	if err := m.write(next); err != nil {
		m.cfg.Log.Error("the file of CPUs is not written, and tried again", "error", err)
	}
	m.publish(next)
}

// forget drops the handouts of the pod.
func (m *CPUManager) forget(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.handed, uid)
}
