package crispec

import (
	"cmp"
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Assigned is what a container is given of the node by those that share it out (containerManager),
// besides what its spec says of itself. The zero value is nothing.
type Assigned struct {
	// Env are variables; those of the container's spec override them.
	Env []*runtimeapi.KeyValue
	// Mounts and Devices of the host. Those of the container's volumes at the same path override
	// them.
	Mounts  []*runtimeapi.Mount
	Devices []*runtimeapi.Device
	// Annotations of the container for the runtime; the agent's own override them.
	Annotations map[string]string
	// CDIDevices are devices by their names in CDI (Container Device Interface).
	CDIDevices []*runtimeapi.CDIDevice
	// CPUs and MemoryNodes are where the container runs and has its memory, as lists such as
	// "0-3,8" (cpuset(7)); "" leaves it to the kernel.
	CPUs, MemoryNodes string
}

// add adds what the container was assigned to its configuration.
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

// without returns the items whose key is not that of one of the others.
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
