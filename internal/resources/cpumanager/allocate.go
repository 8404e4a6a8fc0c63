package cpumanager

import (
	"fmt"

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
	n := m.policy.exclusive(p, c)
	now := m.store.current()
	assigned := now.owned[p.UID][c.Name]
	switch {
	case !assigned.IsEmpty():
		return m.policy.hints(demand{cpus: assigned.Size(), held: assigned})
	case n == 0:
		return nil
	}
	return m.policy.hints(m.policy.demand(now, n, reusable(p, c, now.owned[p.UID])))
}

// PodHints returns the topology hints for all containers of the pod together.
func (m *CPUManager) PodHints(p *v1.Pod) topologymanager.Hints {
	now := m.store.current()
	assigned := now.owned[p.UID]
	n := peak(p, func(c *v1.Container) int { return m.policy.exclusive(p, c) })
	held := union(assigned)
	d := m.policy.demand(now, max(n, held.Size()), held)
	complete := true
	for c := range pod.Containers(&p.Spec) {
		complete = complete && (m.policy.exclusive(p, c) == 0 || !assigned[c.Name].IsEmpty())
	}
	switch {
	case n == 0 && held.IsEmpty():
		return nil
	case complete:
		d = demand{cpus: held.Size(), held: held}
	}
	return m.policy.hints(d)
}

// Allocate allocates exclusive CPUs to the container. When it returns nil, the allocation is
// durable. An existing allocation stays.
//
// With full-pcpus-only, the error may be a *topologymanager.Refusal; other errors are those of the
// choice or of writing the file.
func (m *CPUManager) Allocate(p *v1.Pod, c *v1.Container, near topologymanager.Hint) error {
	m.store.deciding.Lock()
	defer m.store.deciding.Unlock()
	now := m.store.current()
	if assigned := now.owned[p.UID][c.Name]; !assigned.IsEmpty() {
		m.record(p, c, journal.Entry{Decision: fmt.Sprintf("keep CPUs %s", assigned), Why: "the container has them from before"})
		return nil
	}
	n := m.policy.exclusive(p, c)
	if n == 0 {
		return nil
	}
	m.metrics.requests.Inc()
	d := m.policy.demand(now, n, reusable(p, c, now.owned[p.UID]))
	cpus, err := m.policy.pick(d, near)
	var next pools
	if err == nil {
		next = now.give(p.UID, c.Name, cpus)
		if err = m.store.write(next); err != nil {
			m.reconciler.wake() // the file may contain it nevertheless
		}
	}
	if err != nil {
		m.metrics.errors.Inc()
		m.countMisalignment(err)
		m.record(p, c, journal.Entry{Decision: fmt.Sprintf("refuse %d CPUs", n), Why: m.policy.explain(d, near, now), Error: err.Error()})
		return err
	}
	m.publish(next)
	m.countAlignment(cpus)
	m.record(p, c, journal.Entry{Decision: fmt.Sprintf("give CPUs %s", cpus), Why: m.policy.explain(d, near, next)})
	return nil
}

func (m *CPUManager) record(p *v1.Pod, c *v1.Container, e journal.Entry) {
	e.Subject = journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
	e.Component, e.Container = component, c.Name
	m.journal.Record(e)
}

// Release returns the CPUs of the pod to the shared pool. All its containers must have exited.
func (m *CPUManager) Release(uid pod.UID) {
	m.store.deciding.Lock()
	defer m.store.deciding.Unlock()
	m.releaseLocked(uid)
}

// Retain releases the CPUs of all pods that are not in keep. Call it when all pods are known.
func (m *CPUManager) Retain(keep map[pod.UID]bool) {
	m.store.deciding.Lock()
	defer m.store.deciding.Unlock()
	m.releaseLocked(m.store.unlisted(keep)...)
}

// releaseLocked releases the CPUs of the pods, with one write. If the write fails, the release
// holds in memory and the next write persists it; a new agent would release the pods again.
// deciding must be held.
func (m *CPUManager) releaseLocked(uids ...pod.UID) {
	next, changed := m.store.current(), false
	for _, uid := range uids {
		m.store.forget(uid)
		if len(next.owned[uid]) == 0 {
			continue
		}
		var freed cpuset.CPUSet
		next, freed = next.release(uid)
		changed = true
		if s, ok := m.journal.SubjectOf(uid); ok {
			m.journal.Record(journal.Entry{
				Subject: s, Component: component, Decision: fmt.Sprintf("take CPUs %s back", freed),
				Why: fmt.Sprintf("the pod has ended, or was refused; shared CPUs are %s", next.shared),
			})
		} else {
			m.log.Info("CPUs of a pod that is gone are shared again", "pod", uid, "cpus", freed.String())
		}
	}
	if !changed {
		return
	}
	if err := m.store.write(next); err != nil {
		m.log.Error("the file of CPUs is not written, and tried again", "error", err)
	}
	m.publish(next)
}
