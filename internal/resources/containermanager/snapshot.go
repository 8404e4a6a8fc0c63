package containermanager

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/memorymanager"
)

// Snapshot is the resource assignment of the node, and what is free.
type Snapshot struct {
	// CPUs is nil unless containers can have exclusive CPUs.
	CPUs *CPUs `json:"cpus,omitempty"`
	// Memory is the memory by NUMA node; empty unless it is allocated by node.
	Memory []memorymanager.NodeMemory `json:"memory,omitempty"`
	// Resources are the extended resources of device plugins, sorted by name.
	Resources []devicemanager.Resource `json:"resources,omitempty"`
	// Drivers are the connected DRA drivers.
	Drivers []string `json:"drivers,omitempty"`
	// Containers are the containers with resources, in the order of their pods.
	Containers []Holding `json:"containers,omitempty"`
}

// CPUs are the CPUs of the node, in the kernel's list format ("0-3,8").
type CPUs struct {
	// Reserved are the CPUs that are never exclusive, Shared those of containers without exclusive
	// CPUs, Free those that can become exclusive.
	Reserved string `json:"reserved"`
	Shared   string `json:"shared"`
	Free     string `json:"free"`
}

// Holding is the resource assignment of one container.
type Holding struct {
	Namespace string  `json:"namespace"`
	Pod       string  `json:"pod"`
	UID       pod.UID `json:"uid"`
	Container string  `json:"container"`
	// CPUs are the exclusive CPUs, in the kernel's list format; "" if there are none.
	CPUs    string                 `json:"cpus,omitempty"`
	Memory  []memorymanager.Block  `json:"memory,omitempty"`
	Devices []devicemanager.Device `json:"devices,omitempty"`
	Claims  []Claim                `json:"claims,omitempty"`
}

// Claim is a container's share of a ResourceClaim in its namespace.
type Claim struct {
	Name string `json:"name"`
	// Devices have the form driver/pool/device.
	Devices []string `json:"devices"`
}

// Snapshot returns the resource assignment of the given pods. It does not block allocations, so a
// concurrent allocation may be visible in only one part of it.
func (m *ContainerManager) Snapshot(pods []*v1.Pod) Snapshot {
	s := Snapshot{Memory: m.Memory.Nodewise(), Resources: m.Devices.Resources()}
	if reserved, shared, ok := m.CPUs.Common(); ok {
		s.CPUs = &CPUs{Reserved: reserved.String(), Shared: shared.String(), Free: shared.Difference(reserved).String()}
	}
	if m.Claims != nil {
		s.Drivers = m.Claims.Connected()
	}
	for _, p := range pods {
		for c := range pod.Containers(&p.Spec) {
			if h := m.holding(p, c); h.CPUs != "" || h.Memory != nil || h.Devices != nil || h.Claims != nil {
				s.Containers = append(s.Containers, h)
			}
		}
	}
	return s
}

// holding returns the resource assignment of a container.
func (m *ContainerManager) holding(p *v1.Pod, c *v1.Container) Holding {
	h := Holding{
		Namespace: p.Namespace, Pod: p.Name, UID: p.UID, Container: c.Name,
		CPUs: m.CPUs.Exclusive(p.UID, c.Name).String(), Memory: m.Memory.Memory(p.UID, c.Name), Devices: m.Devices.Devices(p.UID, c.Name),
	}
	if m.Claims == nil {
		return h
	}
	for _, claim := range m.Claims.Claims(p, c) {
		out := Claim{Name: claim.Name, Devices: []string{}}
		for _, d := range claim.Devices {
			out.Devices = append(out.Devices, d.Driver+"/"+d.Pool+"/"+d.Name)
		}
		h.Claims = append(h.Claims, out)
	}
	return h
}

// Of returns the resource assignment of a container, and false if it has none.
func (s *Snapshot) Of(uid pod.UID, container string) (Holding, bool) {
	i := slices.IndexFunc(s.Containers, func(h Holding) bool { return h.UID == uid && h.Container == container })
	if i < 0 {
		return Holding{}, false
	}
	return s.Containers[i], true
}
