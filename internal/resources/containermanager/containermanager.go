// Package containermanager combines the resource managers (containerManager of the literature):
// deviceManager, cpuManager and memoryManager, which topologyManager aligns, and the claims of
// dynamic resource allocation.
//
// Owns: the order of calls to the managers, and their serialization.
// Reads: the allocations of the managers.
// Never: stores allocations; holds its lock while a plugin prepares devices.
package containermanager

import (
	"context"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/dra"
	"berth/internal/resources/memorymanager"
	"berth/internal/resources/topologymanager"
	"berth/internal/runtime/crispec"
)

// Config configures a ContainerManager.
type Config struct {
	Devices *devicemanager.Manager
	CPUs    *cpumanager.CPUManager
	Memory  *memorymanager.Manager
	// Topology has the three managers above as its providers.
	Topology *topologymanager.Manager
	// Claims is nil if the agent is not a cluster member.
	Claims *dra.Manager
	// Silent: the health of devices is not reported in pod status (feature gate
	// ResourceHealthStatus is off).
	Silent bool
}

// ContainerManager assigns exclusive resources of the node to pods. It is safe for concurrent use.
type ContainerManager struct {
	Config
	// assigning is held during an allocation, which may take some seconds if a plugin is asked for
	// its preference.
	assigning sync.Mutex

	wake chan struct{} // capacity 1

	mu    sync.Mutex
	known map[pod.UID]bool // guarded by mu; the pods of a pending Retain, else nil
}

// New returns a ContainerManager.
func New(cfg Config) *ContainerManager {
	return &ContainerManager{Config: cfg, wake: make(chan struct{}, 1)}
}

// Run executes Retain requests until ctx is done.
func (m *ContainerManager) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.wake:
			m.retain()
		}
	}
}

// Assign allocates devices, CPUs and memory to the containers of a pod that is admitted otherwise.
// Existing allocations stay. An error is a *topologymanager.Refusal; the pod has no allocations
// then.
func (m *ContainerManager) Assign(p *v1.Pod) error {
	m.protect(p.UID)
	m.assigning.Lock()
	defer m.assigning.Unlock()
	return m.Topology.Admit(p)
}

// Reassign is Assign for a pod that an earlier agent admitted. Its allocations stay, also on an
// error.
func (m *ContainerManager) Reassign(p *v1.Pod) error {
	m.protect(p.UID)
	m.assigning.Lock()
	defer m.assigning.Unlock()
	return m.Topology.Readmit(p)
}

// Release releases devices, CPUs and memory of the pod.
func (m *ContainerManager) Release(uid pod.UID) {
	m.assigning.Lock()
	defer m.assigning.Unlock()
	m.Devices.Release(uid)
	m.CPUs.Release(uid)
	m.Memory.Release(uid)
	m.Topology.Forget(uid)
}

// Retain releases the resources of all pods that are not in known and are not assigned later. It
// does not block; Run executes it.
func (m *ContainerManager) Retain(known map[pod.UID]bool) {
	m.mu.Lock()
	m.known = maps.Clone(known)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
	if m.Claims != nil {
		m.Claims.Retain(known)
	}
}

// protect excludes a pod that is about to be assigned from a pending Retain.
func (m *ContainerManager) protect(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known != nil {
		m.known[uid] = true
	}
}

func (m *ContainerManager) retain() {
	m.assigning.Lock()
	defer m.assigning.Unlock()
	m.mu.Lock()
	keep := m.known
	m.known = nil
	m.mu.Unlock()
	if keep == nil {
		return
	}
	m.Devices.Retain(keep)
	m.CPUs.Retain(keep)
	m.Memory.Retain(keep)
	m.Topology.Retain(keep)
}

// PrepareDevices has plugins prepare the devices of the pod, and waits for them. If a plugin fails,
// the error is a *topologymanager.Refusal.
func (m *ContainerManager) PrepareDevices(ctx context.Context, p *v1.Pod) error {
	err := m.Devices.Prepare(ctx, p)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return topologymanager.Unexpected(err)
}

// PrepareClaims has drivers prepare the claims of the pod. Call it before the sandbox is created.
func (m *ContainerManager) PrepareClaims(ctx context.Context, p *v1.Pod) error {
	if m.Claims == nil {
		return nil // admission rejects pods with claims
	}
	return m.Claims.Prepare(ctx, p)
}

// Finish releases all resources of a pod that has terminated. An error is that of a driver that
// failed to unprepare a claim; retry it.
func (m *ContainerManager) Finish(ctx context.Context, uid pod.UID) error {
	if m.Claims != nil {
		if err := m.Claims.Unprepare(ctx, uid); err != nil {
			return err
		}
	}
	m.Release(uid)
	return nil
}

// Health returns the health of the devices of the pod's regular containers, by container name
// (KEP-4680).
func (m *ContainerManager) Health(p *v1.Pod) map[string][]v1.ResourceStatus {
	var out map[string][]v1.ResourceStatus
	if m.Silent {
		return out
	}
	for i := range p.Spec.Containers {
		name := p.Spec.Containers[i].Name
		all := m.Devices.AllocatedResourcesStatus(p.UID, name)
		if m.Claims != nil {
			all = slices.Concat(all, m.Claims.AllocatedResourcesStatus(p, name))
		}
		if len(all) == 0 {
			continue
		}
		if out == nil {
			out = map[string][]v1.ResourceStatus{}
		}
		out[name] = all
	}
	return out
}

// Assigned returns the settings for a container that is about to be created. It may wait for
// PreStartContainer of a device plugin.
func (m *ContainerManager) Assigned(ctx context.Context, p *v1.Pod, c *v1.Container) (out crispec.Assigned, err error) {
	if err := m.creating(p, c.Name); err != nil {
		return out, err
	}
	options, err := m.Devices.Options(ctx, p, c)
	if err != nil {
		return out, err
	}
	out = crispec.Assigned{
		Env: options.Envs, Mounts: options.Mounts, Devices: options.Devices, Annotations: options.Annotations, CDIDevices: options.CDIDevices,
		CPUs: m.CPUs.CPUs(p.UID, c.Name), MemoryNodes: cpuset.New(m.Memory.Nodes(p.UID, c.Name)...).String(),
	}
	if m.Claims == nil {
		return out, nil
	}
	names, err := m.Claims.CDIDevices(p, c)
	for _, name := range names {
		out.CDIDevices = append(out.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	return out, err
}

// HasDevices reports whether the pod has devices of plugins or claims.
func (m *ContainerManager) HasDevices(p *v1.Pod) bool {
	for c := range pod.Containers(&p.Spec) {
		if len(m.Devices.Devices(p.UID, c.Name)) > 0 {
			return true
		}
	}
	return len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil
}

// creating releases the memory of exited init containers.
func (m *ContainerManager) creating(p *v1.Pod, container string) error {
	if len(p.Spec.InitContainers) == 0 {
		return nil
	}
	m.assigning.Lock()
	defer m.assigning.Unlock()
	return m.Memory.Creating(p, container)
}

// Available returns how many devices of each extended resource pods can have in total: the number
// of healthy devices, but not less than the number of allocated ones.
func (m *ContainerManager) Available() map[v1.ResourceName]int64 {
	_, allocatable := m.Devices.Capacity()
	out := map[v1.ResourceName]int64{}
	for name, q := range allocatable {
		out[name] = q.Value()
	}
	for name, n := range m.Devices.Allocated() {
		out[name] = max(out[name], n)
	}
	return out
}
