package cgroups

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	lib "github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// EnsureQoS creates kubepods and the cgroups of burstable and best-effort pods, and writes their
// values. It reads the requests of an earlier agent's pods, so that these cgroups keep their shares
// until each pod is ensured or removed.
func (m *Manager) EnsureQoS(ctx context.Context) error {
	top := podValues{}
	if m.allocatable.MilliCPU > 0 {
		top.shares = SharesFromMilliCPU(m.allocatable.MilliCPU)
	}
	for _, g := range []struct {
		name   name
		values podValues
	}{
		{m.tree.root.child(kubepods), top},
		{m.tree.root.child(kubepods, bestEffort), podValues{shares: MinShares}},
		{m.tree.root.child(kubepods, burstable), podValues{}},
	} {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ensure cgroup %s: %w", g.name.path(m.tree.driver), context.Cause(ctx))
		}
		if _, err := m.tree.ensure(g.name, g.values); err != nil {
			return err
		}
	}
	if err := m.find(); err != nil {
		return err
	}
	return m.syncClasses()
}

// classValues are the values of QoS cgroups that depend on their pods.
type classValues struct {
	shares     uint64     // of burstable
	guaranteed protection // of kubepods: all of its pods
	burstable  protection
}

// computeClassValues sums up the pods' requests. Memory is protected only as far as it is in all
// ancestors (kernel documentation, cgroup version 2, memory.min), so kubepods has the sum of both
// classes.
func computeClassValues(pods map[pod.UID]ensured, q *MemoryQoS) classValues {
	var milli int64
	var v classValues
	for _, p := range pods {
		if p.class == v1.PodQOSBurstable {
			milli += p.milliCPU
		}
		if q != nil {
			lowest, low := q.Protected(p.class, p.memory)
			v.guaranteed.min += lowest
			v.guaranteed.low += low
			v.burstable.low += low
		}
	}
	v.shares = SharesFromMilliCPU(milli)
	return v
}

// syncClasses writes the values that depend on pods to the QoS cgroups. Only one goroutine writes
// at a time; concurrent calls leave the newer values to it.
func (m *Manager) syncClasses() error {
	for {
		m.mu.Lock()
		want := computeClassValues(m.pods, m.settings.MemoryQoS)
		if m.writing || m.written == want {
			m.mu.Unlock()
			return nil
		}
		m.writing = true
		was := m.written
		m.mu.Unlock()

		err := m.writeClasses(was, want)

		m.mu.Lock()
		m.writing = false
		if err == nil {
			m.written = want
		}
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (m *Manager) writeClasses(was, want classValues) error {
	defer m.tree.metrics.operated(update, time.Now())
	v := podValues{shares: want.shares}
	if m.settings.MemoryQoS != nil {
		v.protection = &want.burstable
		if was.guaranteed != want.guaranteed {
			if _, err := m.tree.ensure(m.tree.root.child(kubepods), podValues{protection: &want.guaranteed}); err != nil {
				return err
			}
		}
	}
	_, err := m.tree.ensure(m.tree.root.child(kubepods, burstable), v)
	return err
}

// unlimited removes the limit of an agent with another configuration.
const unlimited = -1

// EnforceAllocatable limits kubepods to the memory and processes of Allocatable, and removes limits
// that are not in it (enforceNodeAllocatable).
func (m *Manager) EnforceAllocatable() error {
	v := podValues{memory: m.allocatable.MemoryBytes, pids: m.allocatable.Pids}
	if v.memory <= 0 {
		v.memory = unlimited
	}
	if v.pids <= 0 {
		v.pids = unlimited
	}
	_, err := m.tree.ensure(m.tree.root.child(kubepods), v)
	return err
}

// Reserved is the reservation of an existing cgroup of daemons: kubeReservedCgroup or
// systemReservedCgroup.
type Reserved struct {
	// Field is the configuration field that names the cgroup, for errors.
	Field string
	// Cgroup is its path from the root of the hierarchies. With the systemd driver it is a slice,
	// with or without ".slice".
	Cgroup string
	// Resources are the reserved resources; zero fields are not limited.
	Resources Allocatable
}

// EnforceReserved writes the values of a reserved cgroup, which must exist.
func (m *Manager) EnforceReserved(r Reserved) error {
	n := rootName(r.Cgroup)
	if m.tree.driver == Systemd {
		for i := range n {
			n[i] = strings.TrimSuffix(n[i], slice)
		}
	}
	v := podValues{memory: r.Resources.MemoryBytes, pids: r.Resources.Pids}
	if r.Resources.MilliCPU > 0 {
		v.shares = SharesFromMilliCPU(r.Resources.MilliCPU)
	}
	g, err := m.tree.open(n, v)
	if err == nil {
		err = m.tree.missingFor(g, v)
	}
	if err == nil {
		err = m.tree.set(g, v)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", r.Field, r.Cgroup, err)
	}
	return nil
}

// missingFor returns an error if the cgroup does not exist for one of the values.
func (t *tree) missingFor(g lib.Manager, v podValues) error {
	h := t.host()
	for controller, used := range map[string]bool{"cpu": v.shares > 0, "memory": v.memory > 0, "pids": v.pids > 0} {
		if !used || !h.has[controller] {
			continue
		}
		if dir := g.Path(controller); !lib.PathExists(dir) {
			return fmt.Errorf("%s: no such cgroup: it must be made before the agent starts", cmp.Or(dir, controller))
		}
	}
	return nil
}
