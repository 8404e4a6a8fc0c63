// Package containermanager joins those who share out the node (containerManager of the literature):
// deviceManager, cpuManager and memoryManager, whom topologyManager has act together, and the
// claims of dynamic resource allocation.
//
// Owns: the order in which they are asked, and that they are asked one at a time.
// Reads: what each of them says.
// Never: keeps what was given, talks to a plugin while others wait.
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

// Config is what a ContainerManager joins.
type Config struct {
	Devices *devicemanager.Manager
	CPUs    *cpumanager.CPUManager
	Memory  *memorymanager.Manager
	// Topology has the three above as its providers.
	Topology *topologymanager.Manager
	// Claims is nil for who is no member of a cluster.
	Claims *dra.Manager
	// Silent: pods are told nothing of the health of their devices (the gate ResourceHealthStatus
	// turned off).
	Silent bool
}

// ContainerManager gives pods what of the node is theirs alone. It is safe for concurrent use.
type ContainerManager struct {
	Config
	// sharing is held while it is decided who gets what, which may last some seconds when a plugin
	// is asked what it would rather give.
	sharing sync.Mutex

	wake chan struct{} // capacity 1

	mu    sync.Mutex
	known map[pod.UID]bool // guarded by mu; pods that are there, until it is seen to; else nil
}

// New returns a ContainerManager.
func New(cfg Config) *ContainerManager {
	return &ContainerManager{Config: cfg, wake: make(chan struct{}, 1)}
}

// Run does what Retain asks for, until ctx is done.
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

// Assign chooses devices, CPUs and memory for the containers of a pod that may start otherwise.
// What they have already stays. The error is a *topologymanager.Refusal; the pod has nothing then.
func (m *ContainerManager) Assign(p *v1.Pod) error {
	m.noteKept(p.UID)
	m.sharing.Lock()
	defer m.sharing.Unlock()
	return m.Topology.Admit(p)
}

// Reassign is Assign for a pod that an earlier agent admitted. It keeps what it can have.
func (m *ContainerManager) Reassign(p *v1.Pod) error {
	m.noteKept(p.UID)
	m.sharing.Lock()
	defer m.sharing.Unlock()
	return m.Topology.Readmit(p)
}

// Release takes back devices, CPUs and memory of the pod.
func (m *ContainerManager) Release(uid pod.UID) {
	m.sharing.Lock()
	defer m.sharing.Unlock()
	m.Devices.Release(uid)
	m.CPUs.Release(uid)
	m.Memory.Release(uid)
	m.Topology.Forget(uid)
}

// Retain takes back everything from all pods but these, and those that come later. It does not
// block: Run does it.
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

// noteKept keeps what a pod is about to be given from a Retain that did not know of it.
func (m *ContainerManager) noteKept(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known != nil {
		m.known[uid] = true
	}
}

func (m *ContainerManager) retain() {
	m.sharing.Lock()
	defer m.sharing.Unlock()
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

// PrepareDevices has plugins make ready what the pod was assigned. It lasts as long as they take. A
// *topologymanager.Refusal is what a plugin said.
func (m *ContainerManager) PrepareDevices(ctx context.Context, p *v1.Pod) error {
	err := m.Devices.Prepare(ctx, p)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return topologymanager.Unexpected(err)
}

// PrepareClaims has drivers make the claims of the pod ready, for a sandbox that is about to be
// made.
func (m *ContainerManager) PrepareClaims(ctx context.Context, p *v1.Pod) error {
	if m.Claims == nil {
		return nil // admission refuses pods with claims
	}
	return m.Claims.Prepare(ctx, p)
}

// Finish gives back all that the pod has. Nothing of it runs any more. An error is of a claim,
// whose driver is to be asked again.
func (m *ContainerManager) Finish(ctx context.Context, uid pod.UID) error {
	if m.Claims != nil {
		if err := m.Claims.Unprepare(ctx, uid); err != nil {
			return err
		}
	}
	m.Release(uid)
	return nil
}

// Health returns what is known of the devices of the pod's regular containers, by their names
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

// Assigned returns what the container is to be created with. It may wait for a plugin that has to
// do something before each start of a container.
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

// HasDevices reports whether the pod has devices of plugins, or of claims.
func (m *ContainerManager) HasDevices(p *v1.Pod) bool {
	for c := range pod.Containers(&p.Spec) {
		if len(m.Devices.Devices(p.UID, c.Name)) > 0 {
			return true
		}
	}
	return len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil
}

// creating frees the memory of init containers that have ended.
func (m *ContainerManager) creating(p *v1.Pod, container string) error {
	if len(p.Spec.InitContainers) == 0 {
		return nil
	}
	m.sharing.Lock()
	defer m.sharing.Unlock()
	return m.Memory.Creating(p, container)
}

// Available returns how many devices of each extended resource pods can have in all: those that are
// healthy, and at least as many as pods have.
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
