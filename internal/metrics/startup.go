package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The families of a node's start. Their parts follow each other: until the agent, until it registers, until it has, until the node is ready.
var (
	startBefore       = desc("kubelet_node_startup_pre_kubelet_duration_seconds", "[ALPHA] Duration in seconds of node startup before kubelet starts.")
	startUnregistered = desc("kubelet_node_startup_pre_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup before registration.")
	startRegistration = desc("kubelet_node_startup_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup during registration.")
	startRegistered   = desc("kubelet_node_startup_post_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup after registration.")
	startAll          = desc("kubelet_node_startup_duration_seconds", "[ALPHA] Duration in seconds of node startup in total.")
)

// NodeStart measures the start of a node that was not there before. One that was has no such start, and no samples.
type NodeStart struct {
	boot, agent time.Time

	mu                             sync.Mutex
	registering, registered, ready time.Time // guarded by mu; zero: not yet
}

// NewNodeStart returns the measure of a machine that booted and an agent that began at these times; a zero time is not known.
func NewNodeStart(boot, agent time.Time) *NodeStart { return &NodeStart{boot: boot, agent: agent} }

// Registering, Registered and Ready are called when the node has come so far; what counts is the first time.
func (s *NodeStart) Registering() { s.reach(&s.registering) }

// Registered is called when the API server has made the Node.
func (s *NodeStart) Registered() { s.reach(&s.registered) }

// Ready is called when the Node was reported as ready.
func (s *NodeStart) Ready() { s.reach(&s.ready) }

func (s *NodeStart) reach(step *time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if step.IsZero() {
		*step = time.Now()
	}
}

// Describe names the families.
func (s *NodeStart) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{startBefore, startUnregistered, startRegistration, startRegistered, startAll} {
		ch <- d
	}
}

// Collect tells of the parts that are over.
func (s *NodeStart) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registered.IsZero() {
		return
	}
	for _, part := range []struct {
		d        *prometheus.Desc
		from, to time.Time
	}{
		{startBefore, s.boot, s.agent},
		{startUnregistered, s.agent, s.registering},
		{startRegistration, s.registering, s.registered},
		{startRegistered, s.registered, s.ready},
		{startAll, s.boot, s.ready},
	} {
		if !part.from.IsZero() && !part.to.IsZero() {
			ch <- prometheus.MustNewConstMetric(part.d, gauge, part.to.Sub(part.from).Seconds())
		}
	}
}
