package agent

import (
	"context"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/cluster/node"
	"berth/internal/config"
	"berth/internal/health"
	"berth/internal/observe/pleg"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/dra"
	"berth/internal/resources/machine"
	"berth/internal/resources/memorymanager"
	"berth/internal/resources/topologymanager"
	"berth/internal/storage/plugins"
)

// Checkpoint files of resource assignments below the root directory; their names and formats are
// the kubelet's.
const (
	devicePluginsDir = "device-plugins"
	cpuStateFile     = "cpu_manager_state"
	memoryStateFile  = "memory_manager_state"
	claimsFile       = "dra_manager_state"
	claimHealthFile  = "dra_health_state"
)

// resourceManagers are the managers of devices, claims, CPUs and memory.
type resourceManagers struct {
	// changed gets the pods whose devices, claims or plugins have changed.
	changed, claimsChanged *pod.Inbox[pod.UID]
	layout                 machine.Machine
	devices                *devicemanager.Manager
	claims                 *dra.Manager // nil without a cluster
	cpus                   *cpumanager.CPUManager
	memory                 *memorymanager.Manager
	containers             *containermanager.ContainerManager
}

// newResourceManagers creates the managers of plugins, claims, CPUs and memory, and connects them.
func newResourceManagers(g *dependencies, runtime cpumanager.Runtime, p *pleg.PLEG, capacityChanged func()) (s resourceManagers, err error) {
	s.changed = pod.NewInbox[pod.UID]()
	if s.layout, err = readLayout(&g.base); err != nil {
		return s, err
	}
	if s.devices, err = devicemanager.New(devicemanager.Config{
		Dir: g.cfg.inRoot(devicePluginsDir), Nodes: nodesOf(s.layout), Changed: s.changed, CapacityChanged: capacityChanged,
		Listen: g.out.ListenPlugins, Dial: g.out.DialPlugin, Watch: deviceWatch(g.out.Plugins),
		Journal: g.journal, Metrics: g.out.Metrics, Log: g.cfg.Log,
	}); err != nil {
		return s, err
	}
	if err := s.addClaims(g); err != nil {
		return s, err
	}
	return s, s.addAssignments(g, runtime, p)
}

// addClaims creates the manager of resource claims, in a cluster only.
func (s *resourceManagers) addClaims(g *dependencies) (err error) {
	if !g.api.isCluster() {
		return nil
	}
	c := dra.Config{
		API: g.api.objects(g.cfg.NodeName), NodeName: g.cfg.NodeName, StateFile: g.cfg.inRoot(claimsFile), HealthFile: g.cfg.inRoot(claimHealthFile),
		Dial: g.out.DialPlugin, Journal: g.journal, Metrics: g.out.Metrics, Log: g.cfg.Log,
	}
	if !g.cfg.Kubelet.FeatureEnabled("ResourceHealthStatus") {
		c.Reporting = dra.ReportNothing
	}
	if s.claims, err = dra.New(c); err == nil {
		s.claimsChanged = s.claims.Subscribe()
	}
	return err
}

// deviceWatch watches the directory of device plugins; nil is inotify.
func deviceWatch(open func() (plugins.Watch, error)) func() (devicemanager.Watch, error) {
	if open == nil {
		return nil
	}
	return func() (devicemanager.Watch, error) { return open() }
}

// readLayout reads the machine's CPU and memory topology, if a policy depends on it.
func readLayout(b *base) (machine.Machine, error) {
	k := b.cfg.Kubelet
	if k == nil || k.CPUManagerPolicy == cpumanager.None && k.MemoryManagerPolicy == memorymanager.None && k.TopologyManagerPolicy == topologymanager.None {
		return machine.Machine{Nodes: []machine.Node{{}}}, nil
	}
	if b.out.Layout != nil {
		return b.out.Layout()
	}
	return machine.Read(os.DirFS("/"))
}

func nodesOf(m machine.Machine) topologymanager.Nodes {
	var out topologymanager.Nodes
	for _, n := range m.Nodes {
		out |= topologymanager.NodesOf(n.ID)
	}
	return out
}

// addAssignments creates the CPU and memory managers, and connects all managers.
func (s *resourceManagers) addAssignments(g *dependencies, runtime cpumanager.Runtime, p *pleg.PLEG) (err error) {
	k := g.cfg.Kubelet
	if k == nil {
		k = &config.Kubelet{KubeletConfiguration: config.KubeletConfiguration{
			CPUManagerPolicy: cpumanager.None, MemoryManagerPolicy: memorymanager.None, TopologyManagerPolicy: topologymanager.None,
			TopologyManagerScope: topologymanager.ContainerScope,
		}}
	}
	alignment := topologymanager.NewAlignment(g.out.Metrics)
	cpus := cpumanager.Config{Runtime: runtime, Changed: pod.NewInbox[pod.UID](), Newest: p.Newest, Alignment: alignment}
	if k.CPUManagerPolicy == cpumanager.Static { // otherwise the inbox has no reader
		cpus.Changed = p.Subscribe()
	}
	if s.cpus, err = cpumanager.New(s.cpuConfig(g, k, cpus)); err != nil {
		return err
	}
	if s.memory, err = memorymanager.New(memorymanager.Config{
		Policy: k.MemoryManagerPolicy, Machine: &s.layout, Reserved: k.ReservedMemory, NodeAllocatableReservation: reservedMemory(g),
		StateFile: g.cfg.inRoot(memoryStateFile), Metrics: g.out.Metrics, Journal: g.journal, Log: g.cfg.Log,
	}); err != nil {
		return err
	}
	topology, err := topologymanager.New(topologymanager.Config{
		Policy: k.TopologyManagerPolicy, Scope: k.TopologyManagerScope, Options: k.TopologyManagerPolicyOptions, Machine: &s.layout,
		Providers: []topologymanager.Provider{s.devices, s.cpus, s.memory}, Metrics: g.out.Metrics,
		Note: func(p *v1.Pod, container, decision, why string) {
			g.journal.Record(journal.Entry{
				Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
				Component: "topology", Container: container, Decision: decision, Why: why,
			})
		},
	})
	if err != nil {
		return err
	}
	s.containers = containermanager.New(containermanager.Config{
		Devices: s.devices, CPUs: s.cpus, Memory: s.memory, Topology: topology, Claims: s.claims,
		Silent: !k.FeatureEnabled("ResourceHealthStatus"),
	})
	return nil
}

// cpuConfig completes the configuration of the CPU manager.
func (s *resourceManagers) cpuConfig(g *dependencies, k *config.Kubelet, c cpumanager.Config) cpumanager.Config {
	c.Policy, c.Options, c.TopologyPolicy = k.CPUManagerPolicy, k.CPUManagerPolicyOptions, k.TopologyManagerPolicy
	c.Gates = cpumanager.Gates{BetaOptions: k.FeatureEnabled("CPUManagerPolicyBetaOptions"), AlphaOptions: k.FeatureEnabled("CPUManagerPolicyAlphaOptions")}
	c.Machine, c.StateFile = &s.layout, g.cfg.inRoot(cpuStateFile)
	c.Metrics, c.Journal, c.Log = g.out.Metrics, g.journal, g.cfg.Log
	for _, reserved := range []v1.ResourceList{g.resources.Reservation.Kube(), g.resources.Reservation.System()} {
		c.ReservedMilliCPU += reserved.Cpu().MilliValue()
	}
	c.ReservedCPUs, _ = cpuset.Parse(k.ReservedSystemCPUs) // was validated
	return c
}

// reservedMemory returns the reserved amount of each type of memory.
func reservedMemory(g *dependencies) v1.ResourceList {
	out := v1.ResourceList{}
	for name, capacity := range g.resources.Capacity {
		out[name] = g.resources.Reservation.Of(name, capacity)
	}
	return out
}

// load reads the resource assignments. If those of CPUs, memory or claims cannot be read, the agent
// exits: pods run with resources that the managers would not know of.
func (s *resourceManagers) load(g *dependencies) func(context.Context) error {
	return func(context.Context) error {
		if err := s.devices.Load(); err != nil {
			g.cfg.Log.Warn("Failed to read the device assignments", "error", err)
			g.recorder.NodeEvent(v1.EventTypeWarning, "AllocationsLost", err.Error())
		}
		loads := []func() error{s.cpus.Load, s.memory.Load}
		if s.claims != nil {
			loads = append(loads, s.claims.Load)
		}
		for _, load := range loads {
			if err := load(); err != nil {
				return err
			}
		}
		return nil
	}
}

// persistence returns which checkpoints of resource assignments cannot be written.
func (s *resourceManagers) persistence() error {
	checks := []health.Check{s.devices.Persistence, s.cpus.Persistence, s.memory.Persistence}
	if s.claims != nil {
		checks = append(checks, s.claims.Health)
	}
	return all(checks...)()
}

// nodeDevices returns the devices of device plugins for the Node.
func (s *resourceManagers) nodeDevices() (d node.Devices) {
	d.Capacity, d.Allocatable = s.devices.Capacity()
	return d
}

// followClaims forwards pods with changed claims to changed.
func (s *resourceManagers) followClaims(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.claimsChanged.Wake():
			for _, uid := range s.claimsChanged.Take() {
				s.changed.Put(uid)
			}
		}
	}
}
