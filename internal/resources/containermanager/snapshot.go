package containermanager

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/memorymanager"
)

// Snapshot is who has what of the node, and what is left.
type Snapshot struct {
	// CPUs is nil unless containers can have CPUs to themselves.
	CPUs *CPUs `json:"cpus,omitempty"`
	// Memory is that of each NUMA node, none unless it is given out by node.
	Memory []memorymanager.NodeMemory `json:"memory,omitempty"`
	// Resources are the extended resources of device plugins, by name.
	Resources []devicemanager.Resource `json:"resources,omitempty"`
	// Drivers are the drivers of claims that are connected.
	Drivers []string `json:"drivers,omitempty"`
	// Containers are those that have something, in the order of their pods.
	Containers []Holding `json:"containers,omitempty"`
}

// CPUs are the CPUs of the node, as lists of the kernel ("0-3,8").
type CPUs struct {
	// Reserved are those that no container has to itself, Shared those of all that have none of
	// their own, Free those that can still be given.
	Reserved string `json:"reserved"`
	Shared   string `json:"shared"`
	Free     string `json:"free"`
}

// Holding is what one container has.
type Holding struct {
	Namespace string  `json:"namespace"`
	Pod       string  `json:"pod"`
	UID       pod.UID `json:"uid"`
	Container string  `json:"container"`
	// CPUs are those that nobody else runs on, as a list of the kernel; "" is none.
	CPUs    string                 `json:"cpus,omitempty"`
	Memory  []memorymanager.Block  `json:"memory,omitempty"`
	Devices []devicemanager.Device `json:"devices,omitempty"`
	Claims  []Claim                `json:"claims,omitempty"`
}

// Claim is what a container has of a ResourceClaim in its namespace.
type Claim struct {
	Name string `json:"name"`
	// Devices are driver/pool/device.
	Devices []string `json:"devices"`
}

// Snapshot returns who has what, of these pods. It waits for nobody, so that what is given in the
// same moment can be in one part of it and not in another.
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

// holding returns what a container has.
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

// Of returns what the container of a pod has, and false if that is nothing.
func (s *Snapshot) Of(uid pod.UID, container string) (Holding, bool) {
	i := slices.IndexFunc(s.Containers, func(h Holding) bool { return h.UID == uid && h.Container == container })
	if i < 0 {
		return Holding{}, false
	}
	return s.Containers[i], true
}
