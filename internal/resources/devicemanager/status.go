package devicemanager

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
)

// Capacity returns the number of devices and of healthy devices of each resource. Resources whose
// plugins have been unavailable for more than five minutes have zero.
func (m *Manager) Capacity() (capacity, allocatable v1.ResourceList) {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	capacity, allocatable = v1.ResourceList{}, v1.ResourceList{}
	set := func(name string, all, healthy int64) {
		capacity[v1.ResourceName(name)] = *apiresource.NewQuantity(all, apiresource.DecimalSI)
		allocatable[v1.ResourceName(name)] = *apiresource.NewQuantity(healthy, apiresource.DecimalSI)
	}
	for name := range m.allocations.gone {
		set(name, 0, 0)
	}
	for name, r := range m.allocations.resources {
		set(name, int64(len(r.devices)), r.healthy())
	}
	return capacity, allocatable
}

// Allocated returns the number of allocated devices of each resource.
func (m *Manager) Allocated() map[v1.ResourceName]int64 {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	names := map[string]bool{}
	for _, containers := range m.allocations.pods {
		for _, resources := range containers {
			for name := range resources {
				names[name] = true
			}
		}
	}
	out := map[v1.ResourceName]int64{}
	for name := range names {
		out[v1.ResourceName(name)] = int64(len(m.allocations.pods.taken(name)))
	}
	return out
}

// Registered reports whether a plugin of the resource is connected.
func (m *Manager) Registered(name v1.ResourceName) bool {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	r := m.allocations.resources[string(name)]
	return r != nil && r.endpoint != nil
}

// AllocatedResourcesStatus returns the devices of the container and their health, sorted by
// resource (KEP-4680). Unknown devices count as healthy.
func (m *Manager) AllocatedResourcesStatus(uid pod.UID, container string) []v1.ResourceStatus {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	var out []v1.ResourceStatus
	has := m.allocations.pods[uid][container]
	for _, name := range slices.Sorted(maps.Keys(has)) {
		s := v1.ResourceStatus{Name: v1.ResourceName(name)}
		for _, id := range has[name].ids() {
			health := v1.ResourceHealthStatusHealthy
			if r := m.allocations.resources[name]; r != nil {
				if d, ok := r.devices[id]; ok && !d.healthy {
					health = v1.ResourceHealthStatusUnhealthy
				}
			}
			s.Resources = append(s.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(id), Health: health})
		}
		out = append(out, s)
	}
	return out
}

// Resource is an extended resource of the node, counted in devices.
type Resource struct {
	Name v1.ResourceName `json:"name"`
	// Devices is the number of listed devices, Healthy of healthy ones, Given of allocated ones,
	// and Free of healthy ones that are not allocated.
	Devices int64 `json:"devices"`
	Healthy int64 `json:"healthy"`
	Given   int64 `json:"given"`
	Free    int64 `json:"free"`
	// Plugin is the socket of the connected plugin; "" if none is connected.
	Plugin string `json:"plugin,omitempty"`
	// AwaySince is the time when the plugin disconnected, if known.
	AwaySince *time.Time `json:"awaySince,omitempty"`
}

// Resources returns the extended resources that plugins offer or have offered, or that are
// allocated, sorted by name.
func (m *Manager) Resources() []Resource {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	names := maps.Clone(m.allocations.gone)
	for name := range m.allocations.resources {
		names[name] = true
	}
	for _, containers := range m.allocations.pods {
		for _, resources := range containers {
			for name := range resources {
				names[name] = true
			}
		}
	}
	var out []Resource
	for _, name := range slices.Sorted(maps.Keys(names)) {
		taken := m.allocations.pods.taken(name)
		s := Resource{Name: v1.ResourceName(name), Given: int64(len(taken))}
		if r := m.allocations.resources[name]; r != nil {
			s.Devices, s.Healthy = int64(len(r.devices)), r.healthy()
			for id, d := range r.devices {
				if d.healthy && !taken[id] {
					s.Free++
				}
			}
			if r.endpoint != nil {
				s.Plugin = r.endpoint.socket
			} else if !r.stopped.IsZero() {
				s.AwaySince = new(r.stopped)
			}
		}
		out = append(out, s)
	}
	return out
}

// Device is one device of the node.
type Device struct {
	Resource v1.ResourceName `json:"resource"`
	ID       string          `json:"id"`
	// Nodes are the device's NUMA nodes as reported by its plugin, if any.
	Nodes []int64 `json:"nodes,omitempty"`
}

// Devices returns the devices of the container, sorted by resource and ID.
func (m *Manager) Devices(uid pod.UID, container string) []Device {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	var out []Device
	has := m.allocations.pods[uid][container]
	for _, name := range slices.Sorted(maps.Keys(has)) {
		for _, id := range has[name].ids() {
			out = append(out, Device{v1.ResourceName(name), id, slices.Clone(has[name].devices[id])})
		}
	}
	return out
}

// AllocatableDevices returns the healthy devices of the node, sorted by resource and ID.
func (m *Manager) AllocatableDevices() []Device {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	var out []Device
	for _, name := range slices.Sorted(maps.Keys(m.allocations.resources)) {
		devices := m.allocations.resources[name].devices
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			if d := devices[id]; d.healthy {
				out = append(out, Device{v1.ResourceName(name), id, slices.Clone(d.nodes)})
			}
		}
	}
	return out
}
