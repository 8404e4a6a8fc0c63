package dra

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// CDIDevices returns the CDI names of the container's devices without duplicates, for CDI_devices
// in CRI's ContainerConfig. It returns an error if a claim was not prepared for the pod; the
// container must not be created then.
func (m *Manager) CDIDevices(p *v1.Pod, c *v1.Container) ([]string, error) {
	requests, err := requestsOf(p, c)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range requests {
		devices, err := m.devicesOf(p, r)
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", c.Name, err)
		}
		for _, d := range devices {
			for _, name := range d.CDI {
				if !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
		}
	}
	return out, nil
}

func (m *Manager) devicesOf(p *v1.Pod, r request) ([]Device, error) {
	all, prepared := m.claimCache.devices(p.UID, types.NamespacedName{Namespace: p.Namespace, Name: r.claim})
	if !prepared {
		return nil, fmt.Errorf("ResourceClaim %s: not prepared for pod %s (%s)", r.claim, p.Name, p.UID)
	}
	return slices.DeleteFunc(all, func(d Device) bool { return !r.gets(d) }), nil
}

// Connected returns the names of the connected drivers, sorted.
func (m *Manager) Connected() []string { return m.drivers.connectedNames() }

// Claim is a container's share of a ResourceClaim.
type Claim struct {
	Namespace, Name string
	Devices         []Device
}

// Claims returns the container's claims for the pod-resources API (k8s.io/kubelet, podresources/v1,
// DynamicResource). Claims that are not prepared are omitted.
// Differs from the kubelet: a claim lists only the devices of the container's requests, and each
// device only its own CDI names.
func (m *Manager) Claims(p *v1.Pod, c *v1.Container) []Claim {
	requests, err := requestsOf(p, c)
	if err != nil {
		return nil // no claim was prepared
	}
	var out []Claim
	for _, r := range requests {
		devices, err := m.devicesOf(p, r)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(out, func(o Claim) bool { return o.Name == r.claim })
		if i < 0 {
			i, out = len(out), append(out, Claim{Namespace: p.Namespace, Name: r.claim})
		}
		for _, d := range devices {
			if !slices.ContainsFunc(out[i].Devices, d.is) {
				out[i].Devices = append(out[i].Devices, d)
			}
		}
	}
	return out
}

// is reports whether both are the same share of the same device.
func (d Device) is(o Device) bool {
	share := func(d Device) string {
		if d.ShareID == nil {
			return ""
		}
		return *d.ShareID
	}
	return d.Driver == o.Driver && d.Pool == o.Pool && d.Name == o.Name && share(d) == share(o)
}

// resourceID is the device's ID in the container status.
func (d Device) resourceID() v1.ResourceID {
	if len(d.CDI) > 0 {
		return v1.ResourceID(d.CDI[0])
	}
	return v1.ResourceID(d.Driver + "/" + d.Pool + "/" + d.Name)
}

// AllocatedResourcesStatus returns the health of the container's claimed devices for its status
// (KEP-4680). It returns nil for containers that are not in spec.containers.
func (m *Manager) AllocatedResourcesStatus(p *v1.Pod, container string) []v1.ResourceStatus {
	i := slices.IndexFunc(p.Spec.Containers, func(c v1.Container) bool { return c.Name == container })
	if i < 0 || m.reporting == ReportNothing {
		return nil
	}
	requests, err := requestsOf(p, &p.Spec.Containers[i])
	if err != nil {
		return nil // no claim was prepared
	}
	var out []v1.ResourceStatus
	now := time.Now()
	for _, r := range requests {
		devices, err := m.devicesOf(p, r)
		if err != nil || r.status == "" {
			continue
		}
		s := v1.ResourceStatus{Name: v1.ResourceName(r.status)}
		for _, d := range devices {
			id := d.resourceID()
			if slices.ContainsFunc(s.Resources, func(h v1.ResourceHealth) bool { return h.ResourceID == id }) {
				continue // IDs must be unique in the API
			}
			health, message := m.health.healths.of(d.Driver, deviceID{d.Pool, d.Name}, now)
			h := v1.ResourceHealth{ResourceID: id, Health: health}
			if message != "" && m.reporting == ReportAll {
				h.Message = &message
			}
			s.Resources = append(s.Resources, h)
		}
		out = append(out, s)
	}
	return out
}
