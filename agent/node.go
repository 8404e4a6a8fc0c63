package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/node"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/record/events"
	"berth/internal/sync/admission"
)

// heartbeatTimeout bounds the calls that keep the node alive: they wait for nobody.
const heartbeatTimeout = 10 * time.Second

// nodeSource is the Node for those that read it or have news of it.
type nodeSource interface {
	// Current returns the newest Node, or what stands in for it, and whether it is known.
	Current() (*v1.Node, bool)
	// Describe returns it for clients, with its kind.
	Describe(ctx context.Context) (*v1.Node, error)
	// Wake says that something that the Node tells has changed. It never blocks.
	Wake()
	// Subscribe returns an inbox that has an element when the Node may be another than before, and
	// the function that ends this.
	Subscribe() (changed *pod.Inbox[string], cancel func())
}

// newNodeSource returns the Node of the API server, or this machine where there is none. problems
// are what keeps the latter from being ready, devices what plugins offer on it.
func newNodeSource(g *ground, rt *containerRuntime, problems func() []error, devices func() node.Devices) nodeSource {
	if g.api.exists() {
		return clusterNode{g.api.current}
	}
	return &localNode{base: &g.base, runtime: rt, problems: problems, devices: devices, pressure: g.nodePressure, described: sync.OnceValue(g.describeMachine)}
}

// allocatable returns what the node has for pods, nil while it is not known.
func allocatable(s nodeSource) v1.ResourceList {
	if n, known := s.Current(); known {
		return n.Status.Allocatable
	}
	return nil
}

// clusterNode is the Node as the API server shows it.
type clusterNode struct{ current *node.Current }

// Current returns the Node, or its stand-in.
func (n clusterNode) Current() (*v1.Node, bool) {
	current := n.current.Node()
	return current, current != nil
}

// Describe returns the Node, or its stand-in.
func (n clusterNode) Describe(context.Context) (*v1.Node, error) {
	current := n.current.Node()
	if current == nil {
		return nil, errors.New("the node is not known yet: the agent is about to read the machine")
	}
	shown := *current // which is shared
	shown.Kind, shown.APIVersion = "Node", "v1"
	return &shown, nil
}

// Wake has the Node reported soon.
func (n clusterNode) Wake() { n.current.Wake() }

// Subscribe tells of the Node as the API server shows it.
func (n clusterNode) Subscribe() (changed *pod.Inbox[string], cancel func()) {
	return n.current.Subscribe()
}

// localNode is this machine as it would be registered.
type localNode struct {
	*base
	runtime   *containerRuntime
	problems  func() []error
	devices   func() node.Devices
	pressure  func() node.Pressure
	described func() *v1.Node
	changed   pod.Publisher[string]
}

// describeMachine describes this machine as a Node.
func (b *base) describeMachine() *v1.Node {
	m, s := b.readMachine(), &b.settings.node
	n := admission.LocalMachine{
		Name: b.cfg.NodeName, CPUs: m.CPUs, Memory: m.Memory, Storage: m.Storage, HugePages: m.HugePages, MaxPods: s.MaxPods, Labels: s.Labels,
	}
	out := admission.LocalNode(n)
	if b.settings.mode != runMode { // of which something may be reserved
		out.Status.Capacity, out.Status.Allocatable = b.resources.Capacity, b.resources.Allocatable
	}
	return out
}

// Current returns what was described first.
func (n *localNode) Current() (*v1.Node, bool) { return n.described(), true }

// Describe describes the machine as it is now.
func (n *localNode) Describe(ctx context.Context) (*v1.Node, error) {
	known, s := n.described(), n.settings.node
	s.Labels, s.MaxPods, s.Reservation = known.Labels, int(known.Status.Capacity.Pods().Value()), n.resources.Reservation
	f := node.Facts{Machine: n.readMachine(), Addresses: []v1.NodeAddress{}, Problems: n.problems(), Pressure: n.pressure(), Devices: n.devices()}
	for _, ip := range n.hostIPs.Current() {
		f.Addresses = append(f.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	f.Addresses = append(f.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: n.cfg.NodeName})
	if name := n.runtime.facts.runtimeName(); name != "" {
		f.Runtime.Version = name + "://" + n.runtime.facts.runtimeVersion()
	} else {
		f.Problems = slices.Insert(f.Problems, 0, errNotReady)
	}
	images, err := n.runtime.nodeImages(ctx)
	if err != nil && f.Runtime.Version != "" {
		f.Problems = slices.Insert(f.Problems, 0, err)
	}
	f.Images = images
	return node.Describe(&s, &f, n.started), nil
}

// Wake tells those who have subscribed.
func (n *localNode) Wake() { n.changed.Publish(n.cfg.NodeName) }

// Subscribe tells of what was woken for.
func (n *localNode) Subscribe() (changed *pod.Inbox[string], cancel func()) {
	return n.changed.Subscribe()
}

// nodeRecorder records events about the Node.
type nodeRecorder struct{ *events.Recorder }

// Event records one event.
func (r nodeRecorder) Event(eventtype, reason, message string) {
	r.NodeEvent(eventtype, reason, message)
}

// newNode builds the Node object's keeper, if there is an API server to keep it at.
func newNode(g *ground, sources node.Sources) (*node.Node, error) {
	if !g.api.exists() {
		return nil, nil
	}
	k := g.member
	heartbeat, err := g.api.client.With(kube.Limits{Timeout: min(heartbeatTimeout, time.Duration(k.NodeLeaseDurationSeconds)*time.Second)})
	if err != nil {
		return nil, err
	}
	s := g.settings.node
	s.RegisterNode, s.Taints, s.ProviderID, s.ExternalCloudProvider = *k.RegisterNode, k.RegisterWithTaints, k.ProviderID, k.CloudProvider == "external"
	s.NodeIPs, s.ControllerAttachDetach, s.Reservation = k.NodeIPs, *k.EnableControllerAttachDetach, g.resources.Reservation
	s.DeclaredFeatures = g.settings.admission.DeclaredFeatures
	sources.Machine, sources.Network = g.out.Machine, g.out.Network
	return node.New(node.Config{
		Settings: s, Sources: sources, Current: g.api.current,
		Nodes: heartbeat, Leases: heartbeat, Recorder: nodeRecorder{g.recorder}, Log: g.cfg.Log,
		UpdateFrequency: k.NodeStatusUpdateFrequency.Duration, ReportFrequency: k.NodeStatusReportFrequency.Duration,
		LeaseDuration: time.Duration(k.NodeLeaseDurationSeconds) * time.Second,
		RootDir:       g.cfg.RootDir, LabelsFile: filepath.Join(g.cfg.RootDir, "node_labels.json"),
		CloseIdleConnections: heartbeat.CloseConnections, Metrics: g.out.Metrics,
		Booted: stats.BootTime("/proc"), Started: g.started,
	})
}
