// Package nodeallocatable computes the resources that are allocatable to pods, and has
// containerManager enforce them (Kubernetes documentation, "Reserve Compute Resources for System
// Daemons").
//
// Owns: the reservations of daemons, the allocatable resources, and the cgroup settings that follow
// from them.
// Reads: the KubeletConfiguration, the machine at the start of the agent.
// Never: writes to a cgroup itself; changes while the agent runs.
package nodeallocatable

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/node"
	"berth/internal/config"
	"berth/internal/host/cgroups"
	"berth/internal/runtime/crispec"
)

// Input is the input of Compute.
type Input struct {
	// Config is nil for an agent without a KubeletConfiguration: nothing is reserved.
	Config *config.Kubelet
	// MaxPods is the maximum number of pods of an agent without Config.
	MaxPods int
	Machine node.Machine
	Host    Host
}

// Host describes the cgroup features of the kernel.
type Host struct {
	CgroupVersion int // 1 or 2
	SwapAccounted bool
	HugePageSizes []int64 // in bytes
}

// ReadHost reads the features of this machine.
func ReadHost() Host {
	version, _ := cgroups.Detect()
	return Host{CgroupVersion: version, SwapAccounted: cgroups.SwapAccounted(), HugePageSizes: cgroups.HugePageSizes()}
}

// Resources are the machine's resources, and the settings derived from them and the configuration.
type Resources struct {
	Reservation           node.Reservation
	Capacity, Allocatable v1.ResourceList
	// Containers are the settings for containers' resources, Pods those for pods' cgroups.
	Containers crispec.ResourceSettings
	Pods       cgroups.Settings
	// Kubepods is the limit of all pods together.
	Kubepods cgroups.Allocatable
	// Reserved are the cgroups of daemons that are limited to their reservations.
	Reserved []cgroups.Reserved
	// EnforcesPods: enforceNodeAllocatable contains "pods".
	EnforcesPods bool
}

// Compute returns the resources. An error names the configuration field.
func Compute(in Input) (*Resources, error) {
	s := node.Settings{MaxPods: in.MaxPods, LocalStorageCapacityIsolation: true}
	enforced := []string{"pods"}
	if k := in.Config; k != nil {
		reservation, err := node.NewReservation(k.KubeReserved, k.SystemReserved, k.EvictionHard, k.ReservedSystemCPUs)
		if err != nil {
			return nil, err
		}
		s = node.Settings{
			MaxPods: int(k.MaxPods), PodsPerCore: int(k.PodsPerCore), LocalStorageCapacityIsolation: *k.LocalStorageCapacityIsolation, Reservation: reservation,
		}
		enforced = k.EnforceNodeAllocatable
	}
	r := &Resources{Reservation: s.Reservation, EnforcesPods: slices.Contains(enforced, "pods")}
	r.Capacity, r.Allocatable = node.Resources(&s, &in.Machine)
	r.Pods = podSettings(in, r.Allocatable)
	r.Containers = containerSettings(in, r.Pods)
	r.Kubepods = kubepods(r, in.Machine.PIDs)
	r.Reserved = reserved(in.Config, s.Reservation)
	return r, nil
}

func podSettings(in Input, allocatable v1.ResourceList) cgroups.Settings {
	k := in.Config
	if k == nil {
		return cgroups.Settings{}
	}
	s := cgroups.Settings{
		PodPidsLimit: *k.PodPidsLimit,
		CPUQuota:     cgroups.CPUQuota{Off: !*k.CPUCFSQuota, Period: k.CPUCFSQuotaPeriod.Duration, OwnCPUs: k.CPUManagerPolicy == "static"},
	}
	if in.Host.CgroupVersion == 2 && k.FeatureEnabled("MemoryQoS") {
		s.MemoryQoS = &cgroups.MemoryQoS{
			ThrottlingFactor: *k.MemoryThrottlingFactor, Allocatable: allocatable.Memory().Value(),
			Reserve: k.MemoryReservationPolicy == config.TieredReservationMemoryReservationPolicy,
		}
	}
	return s
}

func containerSettings(in Input, pods cgroups.Settings) crispec.ResourceSettings {
	s := crispec.ResourceSettings{
		NodeMemory: in.Machine.Memory, NodeSwap: in.Machine.Swap, CPUQuota: pods.CPUQuota, CgroupVersion: in.Host.CgroupVersion,
		SwapAccounted: in.Host.SwapAccounted, HugePageSizes: in.Host.HugePageSizes, KillTogether: true, MemoryQoS: pods.MemoryQoS,
	}
	if k := in.Config; k != nil {
		s.LimitedSwap = k.MemorySwap.SwapBehavior == "LimitedSwap"
		s.KillTogether = !ptr.Deref(k.SingleProcessOOMKill, false)
	}
	return s
}

func kubepods(r *Resources, pids int64) cgroups.Allocatable {
	has := r.Reservation.Enforced(r.Capacity)
	out := cgroups.Allocatable{MilliCPU: has.Cpu().MilliValue()}
	if r.EnforcesPods {
		out.MemoryBytes = has.Memory().Value()
		out.Pids = max(pids-reservedPIDs(r.Reservation.Kube())-reservedPIDs(r.Reservation.System()), 0)
	}
	return out
}

// pidResource is the name of process IDs in kubeReserved and systemReserved (Kubernetes
// documentation, "Process ID Limits And Reservations").
const pidResource = "pid"

func reservedPIDs(list v1.ResourceList) int64 {
	q := list[pidResource]
	return q.Value()
}

func reserved(k *config.Kubelet, reservation node.Reservation) []cgroups.Reserved {
	if k == nil {
		return nil
	}
	var out []cgroups.Reserved
	for _, g := range []struct {
		level, field, cgroup string
		resources            v1.ResourceList
	}{
		{"system-reserved", "systemReservedCgroup", k.SystemReservedCgroup, reservation.System()},
		{"kube-reserved", "kubeReservedCgroup", k.KubeReservedCgroup, reservation.Kube()},
	} {
		limits := cgroups.Allocatable{MilliCPU: g.resources.Cpu().MilliValue()}
		switch {
		case slices.Contains(k.EnforceNodeAllocatable, g.level):
			limits.MemoryBytes, limits.Pids = g.resources.Memory().Value(), reservedPIDs(g.resources)
		case !slices.Contains(k.EnforceNodeAllocatable, g.level+"-compressible"):
			continue
		}
		out = append(out, cgroups.Reserved{Field: g.field, Cgroup: g.cgroup, Resources: limits})
	}
	return out
}
