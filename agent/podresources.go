package agent

import (
	"context"
	"net"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/dra"
	"berth/internal/resources/memorymanager"
	"berth/internal/resources/podresources"
)

// podResourcesSocket is the socket of the pod-resources API, below the root directory.
const podResourcesSocket = "pod-resources/kubelet.sock"

// newPodResources creates the pod-resources API, which reports resource assignments.
func newPodResources(g *dependencies, s *resourceManagers, given *allocation.Allocations) (*podresources.Server, error) {
	c := podresources.Config{
		Socket: g.cfg.inRoot(podResourcesSocket), Pods: activePods{g, given},
		Devices: deviceAnswers{s.devices}, CPUs: s.cpus, Memory: memoryAnswers{s.memory}, Metrics: g.out.Metrics, Log: g.cfg.Log,
	}
	if s.claims != nil {
		c.Claims = claimAnswers{s.claims}
	}
	if g.cfg.Kubelet != nil {
		c.ListKnown = !g.cfg.Kubelet.FeatureEnabled("KubeletPodResourcesListUseActivePods")
	}
	if listen := g.out.ListenPlugins; listen != nil {
		c.Listen = func() (net.Listener, error) { return listen(c.Socket) }
	}
	return podresources.New(c)
}

// servePodResources serves the API while possible; pods do not need it.
//
// Differs from the kubelet, which exits when it cannot be served.
func servePodResources(g *dependencies, s *podresources.Server) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.Run(ctx); ctx.Err() == nil {
			g.cfg.Log.Error("the pod-resources API is not served; start the agent again when that is mended", "socket", s.Socket, "error", err)
		}
		return waitDone(ctx)
	}
}

// activePods lists the node's pods, and those that were admitted and are not terminated.
type activePods struct {
	deps  *dependencies
	given *allocation.Allocations
}

func (a activePods) List() []*v1.Pod { return a.deps.stores.pods.List() }

func (a activePods) GetByFullName(name pod.FullName) (*v1.Pod, bool) {
	return a.deps.stores.pods.GetByFullName(name)
}

func (a activePods) Active() []*v1.Pod {
	var out []*v1.Pod
	for _, p := range a.deps.stores.pods.List() {
		if l, known := a.deps.stores.states.Get(p.UID); known && l.State < pod.Terminated && a.given.IsCurrent(p.UID) {
			out = append(out, p)
		}
	}
	return out
}

// deviceAnswers, memoryAnswers and claimAnswers convert assignments for the API.
type deviceAnswers struct{ *devicemanager.Manager }

func (d deviceAnswers) Devices(uid pod.UID, container string) []podresources.Device {
	return asShown(d.Manager.Devices(uid, container))
}

func (d deviceAnswers) Healthy() []podresources.Device { return asShown(d.AllocatableDevices()) }

func asShown(devices []devicemanager.Device) []podresources.Device {
	out := make([]podresources.Device, 0, len(devices))
	for _, d := range devices {
		shown := podresources.Device{Resource: d.Resource, ID: d.ID}
		for _, n := range d.Nodes {
			shown.Nodes = append(shown.Nodes, int(n))
		}
		out = append(out, shown)
	}
	return out
}

type memoryAnswers struct{ *memorymanager.Manager }

func (m memoryAnswers) Blocks(uid pod.UID, container string) []podresources.Block {
	return blocks(m.Memory(uid, container))
}

func (m memoryAnswers) Allocatable() []podresources.Block { return blocks(m.Manager.Allocatable()) }

func blocks(given []memorymanager.Block) []podresources.Block {
	out := make([]podresources.Block, 0, len(given))
	for _, b := range given {
		out = append(out, podresources.Block{Type: b.Type, Bytes: b.Size, Nodes: b.NUMAAffinity})
	}
	return out
}

type claimAnswers struct{ *dra.Manager }

func (c claimAnswers) Claims(p *v1.Pod, container *v1.Container) []podresources.Claim {
	var out []podresources.Claim
	for _, claim := range c.Manager.Claims(p, container) {
		shown := podresources.Claim{Namespace: claim.Namespace, Name: claim.Name}
		for _, d := range claim.Devices {
			shown.Devices = append(shown.Devices, podresources.ClaimedDevice{Driver: d.Driver, Pool: d.Pool, Name: d.Name, Share: d.ShareID, CDI: d.CDI})
		}
		out = append(out, shown)
	}
	return out
}
