package agent

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/node"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/record/events"
)

// heartbeatTimeout bounds the calls of node heartbeats.
const heartbeatTimeout = 10 * time.Second

// nodeSource is the Node as in the API server.
type nodeSource struct{ current *node.Current }

// allocatable returns the node's allocatable resources, nil while unknown.
func allocatable(s nodeSource) v1.ResourceList {
	if n, known := s.Current(); known {
		return n.Status.Allocatable
	}
	return nil
}

// Current returns the Node, or its stand-in, and whether it is known.
func (n nodeSource) Current() (*v1.Node, bool) {
	current := n.current.Node()
	return current, current != nil
}

// Describe returns the Node, or its stand-in, with its kind, for clients.
func (n nodeSource) Describe(context.Context) (*v1.Node, error) {
	current := n.current.Node()
	if current == nil {
		return nil, errors.New("the node is not known yet: the agent is about to read the machine")
	}
	shown := *current // shared
	shown.Kind, shown.APIVersion = "Node", "v1"
	return &shown, nil
}

// Wake schedules a report of the Node. It never blocks.
func (n nodeSource) Wake() { n.current.Wake() }

// Subscribe returns an inbox that gets an element when the Node may have changed, and a function
// that cancels the subscription.
func (n nodeSource) Subscribe() (changed *pod.Inbox[string], cancel func()) {
	return n.current.Subscribe()
}

// nodeRecorder records events about the Node.
type nodeRecorder struct{ *events.Recorder }

// Event records one event.
func (r nodeRecorder) Event(eventtype, reason, message string) {
	r.NodeEvent(eventtype, reason, message)
}

// newNode creates the component that maintains the Node object.
func newNode(g *dependencies, sources node.Sources) (*node.Node, error) {
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
		Random: g.out.Random, Booted: stats.BootTime("/proc"), Started: g.started,
	})
}
