package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/admission"
	"berth/internal/cgroups"
	"berth/internal/config"
	"berth/internal/crispec"
	"berth/internal/node"
)

// nodeResources are the machine's resources when the agent started, and what the configuration makes of them. They do not change.
type nodeResources struct {
	machine               node.Machine
	reservation           node.Reservation
	capacity, allocatable v1.ResourceList
	cgroupVersion         int
	conf                  *config.Kubelet // nil in run mode: nothing is reserved
}

func (a *Agent) newNodeResources() (*nodeResources, error) {
	r := &nodeResources{machine: a.readMachine(), conf: a.cfg.Kubelet}
	r.cgroupVersion, _ = cgroups.Detect()
	s := node.Settings{MaxPods: cmp.Or(a.cfg.MaxPods, admission.LocalMaxPods), LocalStorageCapacityIsolation: true}
	if k := r.conf; k != nil {
		var err error
		if r.reservation, err = node.NewReservation(k.KubeReserved, k.SystemReserved, k.EvictionHard, k.ReservedSystemCPUs); err != nil {
			return nil, err
		}
		s = node.Settings{
			MaxPods: int(k.MaxPods), PodsPerCore: int(k.PodsPerCore), LocalStorageCapacityIsolation: *k.LocalStorageCapacityIsolation, Reservation: r.reservation,
		}
	}
	r.capacity, r.allocatable = node.Resources(&s, &r.machine)
	return r, nil
}

// containers returns what the resources of containers depend on.
func (r *nodeResources) containers() crispec.ResourceSettings {
	s := crispec.ResourceSettings{
		NodeMemory: r.machine.Memory, NodeSwap: r.machine.Swap, CPUQuota: r.cpuQuota(), CgroupVersion: r.cgroupVersion,
		SwapAccounted: cgroups.SwapAccounted(), HugePageSizes: cgroups.HugePageSizes(), KillTogether: true, MemoryQoS: r.memoryQoS(),
	}
	if k := r.conf; k != nil {
		s.LimitedSwap = r.limitedSwap()
		s.KillTogether = !ptr.Deref(k.SingleProcessOOMKill, false)
	}
	return s
}

// limitedSwap reports whether containers of burstable pods may swap.
func (r *nodeResources) limitedSwap() bool {
	return r.conf != nil && r.conf.MemorySwap.SwapBehavior == "LimitedSwap"
}

func (r *nodeResources) cpuQuota() cgroups.CPUQuota {
	if r.conf == nil {
		return cgroups.CPUQuota{}
	}
	return cgroups.CPUQuota{Off: !*r.conf.CPUCFSQuota, Period: r.conf.CPUCFSQuotaPeriod.Duration}
}

// memoryQoS returns nil unless the feature is on, which needs cgroup version 2.
func (r *nodeResources) memoryQoS() *cgroups.MemoryQoS {
	k := r.conf
	if k == nil || r.cgroupVersion != 2 || !k.FeatureEnabled("MemoryQoS") {
		return nil
	}
	return &cgroups.MemoryQoS{
		ThrottlingFactor: *k.MemoryThrottlingFactor, Allocatable: r.allocatable.Memory().Value(),
		Reserve: k.MemoryReservationPolicy == config.TieredReservationMemoryReservationPolicy,
	}
}

// pods returns what pods' cgroups depend on.
func (r *nodeResources) pods() cgroups.Settings {
	s := cgroups.Settings{CPUQuota: r.cpuQuota(), MemoryQoS: r.memoryQoS()}
	if r.conf != nil {
		s.PodPidsLimit = *r.conf.PodPidsLimit
	}
	return s
}

// enforces reports whether enforceNodeAllocatable has the level.
func (r *nodeResources) enforces(level string) bool {
	if r.conf == nil {
		return level == "pods"
	}
	return slices.Contains(r.conf.EnforceNodeAllocatable, level)
}

// kubepods returns what all pods together may use.
func (r *nodeResources) kubepods() cgroups.Allocatable {
	has := r.reservation.Enforced(r.capacity)
	out := cgroups.Allocatable{MilliCPU: has.Cpu().MilliValue()}
	if r.enforces("pods") {
		out.MemoryBytes = has.Memory().Value()
		out.Pids = max(r.machine.PIDs-reservedPIDs(r.reservation.Kube())-reservedPIDs(r.reservation.System()), 0)
	}
	return out
}

// pidResource is the name of process ids in kubeReserved and systemReserved (Kubernetes documentation, "Process ID Limits And Reservations").
const pidResource = "pid"

func reservedPIDs(list v1.ResourceList) int64 {
	q := list[pidResource]
	return q.Value()
}

// reserved returns the cgroups of daemons that are to be held to what is kept for them.
func (r *nodeResources) reserved() []cgroups.Reserved {
	k := r.conf
	if k == nil {
		return nil
	}
	var out []cgroups.Reserved
	for _, g := range []struct {
		level, field, cgroup string
		resources            v1.ResourceList
	}{
		{"system-reserved", "systemReservedCgroup", k.SystemReservedCgroup, r.reservation.System()},
		{"kube-reserved", "kubeReservedCgroup", k.KubeReservedCgroup, r.reservation.Kube()},
	} {
		limits := cgroups.Allocatable{MilliCPU: g.resources.Cpu().MilliValue()}
		switch {
		case r.enforces(g.level):
			limits.MemoryBytes, limits.Pids = g.resources.Memory().Value(), reservedPIDs(g.resources)
		case !r.enforces(g.level + "-compressible"):
			continue
		}
		out = append(out, cgroups.Reserved{Field: g.field, Cgroup: g.cgroup, Resources: limits})
	}
	return out
}

// newCgroups builds containerManager for the runtime's cgroup driver, and makes the cgroups that do not belong to a pod.
func (a *Agent) newCgroups(ctx context.Context, driver cgroups.Driver) (ContainerManager, error) {
	m, err := cgroups.New(cgroups.Config{
		Root: a.cfg.CgroupRoot, Driver: driver, Allocatable: a.resources.kubepods(), Settings: a.resources.pods(), Log: a.cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := m.EnsureQoS(ctx); err != nil {
		return nil, err
	}
	for _, r := range a.resources.reserved() {
		if err := m.EnforceReserved(r); err != nil {
			a.recorder.NodeEvent(v1.EventTypeWarning, "FailedNodeAllocatableEnforcement",
				fmt.Sprintf("Failed to enforce %s Cgroup Limits on %q: %v", reservedName(r.Field), r.Cgroup, err))
			return nil, err
		}
		a.recorder.NodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced",
			fmt.Sprintf("Updated limits on %s cgroup %s", strings.ToLower(reservedName(r.Field)), r.Cgroup))
	}
	return m, nil
}

func reservedName(field string) string {
	if strings.HasPrefix(field, "kube") {
		return "Kube Reserved"
	}
	return "System Reserved"
}

// allocatableRetry is how long the agent waits before it tries again to limit all pods together.
const allocatableRetry = time.Minute

// enforceAllocatable limits all pods together, until that has succeeded once. Pods start meanwhile.
func (a *Agent) enforceAllocatable(ctx context.Context) error {
	for {
		err := a.facts.EnforceAllocatable()
		if err == nil {
			if a.resources.enforces("pods") {
				a.recorder.NodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
			}
			break
		}
		a.recorder.NodeEvent(v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", "Failed to update Node Allocatable Limits: "+err.Error())
		select {
		case <-time.After(allocatableRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return waitDone(ctx)
}
