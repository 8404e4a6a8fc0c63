package crispec

import (
	"cmp"
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Assigned are the node resources assigned to a container by the resource managers
// (containerManager). The zero value is none.
type Assigned struct {
	// Env are variables; those of the container's spec override them.
	Env []*runtimeapi.KeyValue
	// Mounts and Devices of the host. The container's own at the same path override them.
	Mounts  []*runtimeapi.Mount
	Devices []*runtimeapi.Device
	// Annotations of the container for the runtime; the agent's own override them.
	Annotations map[string]string
	// CDIDevices are devices by their CDI names (Container Device Interface).
	CDIDevices []*runtimeapi.CDIDevice
	// CPUs and MemoryNodes are the container's cpuset, as lists such as "0-3,8" (cpuset(7)); ""
	// does not restrict it.
	CPUs, MemoryNodes string
}

// add merges the assigned resources into the container's configuration.
func (a *Assigned) add(cfg *runtimeapi.ContainerConfig) {
	cfg.Envs = slices.Concat(without(a.Env, cfg.Envs, (*runtimeapi.KeyValue).GetKey), cfg.Envs)
	cfg.Mounts = append(cfg.Mounts, without(a.Mounts, cfg.Mounts, (*runtimeapi.Mount).GetContainerPath)...)
	cfg.Devices = append(cfg.Devices, without(a.Devices, cfg.Devices, (*runtimeapi.Device).GetContainerPath)...)
	cfg.CDIDevices = append(cfg.CDIDevices, a.CDIDevices...)
	if len(a.Annotations) > 0 {
		own := cfg.Annotations
		cfg.Annotations = maps.Clone(a.Annotations)
		maps.Copy(cfg.Annotations, own)
	}
	cfg.Linux.Resources.CpusetCpus, cfg.Linux.Resources.CpusetMems = a.CPUs, a.MemoryNodes
}

// without returns the items whose key occurs in none of the others.
func without[T any, K cmp.Ordered](items, others []T, key func(T) K) []T {
	taken := map[K]bool{}
	for _, o := range others {
		taken[key(o)] = true
	}
	var out []T
	for _, i := range items {
		if !taken[key(i)] {
			out = append(out, i)
		}
	}
	return out
}
