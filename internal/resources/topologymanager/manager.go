package topologymanager

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/machine"
)

// Config is what a Manager needs.
type Config struct {
	// Policy, Scope and Options are those of the KubeletConfiguration.
	Policy, Scope string
	Options       map[string]string
	Machine       *machine.Machine
	// Providers are asked, and allocate, in this order: devices, CPUs, memory.
	Providers []Provider
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	// Note records a decision about a pod, or about a container of it ("": all of them), and what
	// led to it. It may be nil.
	Note func(p *v1.Pod, container, decision, why string)
}

// Manager (topologyManager) decides where what containers ask for is to lie, and has the providers
// give it. Admit, Readmit and Forget do not overlap; Affinity can be called at any time.
type Manager struct {
	cfg     Config
	merging merging
	metrics *metrics

	mu    sync.Mutex
	hints map[pod.UID]map[string]Hint // guarded by mu; by container
}

// New returns a manager. The error is one of the configuration, which it names, or that the machine
// has too many NUMA nodes for the policy.
func New(cfg Config) (*Manager, error) {
	m, err := newMerging(&cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Note == nil {
		cfg.Note = func(*v1.Pod, string, string, string) {}
	}
	return &Manager{cfg: cfg, merging: m, metrics: newMetrics(cfg.Metrics), hints: map[pod.UID]map[string]Hint{}}, nil
}

// Reasons and messages of refusals.
const (
	affinityReason   = "TopologyAffinityError"
	affinityMessage  = "Resources cannot be allocated with Topology locality"
	unexpectedReason = "UnexpectedAdmissionError"
)

// Admit has the providers give the containers of a pod what they ask for, init containers first.
// The error is a *Refusal. Then the pod has nothing.
//
// Differs from the kubelet: what the pod was given before it was refused is taken back at once, not
// when the pod is found to be gone.
func (m *Manager) Admit(p *v1.Pod) error {
	refusal := m.assign(p, m.cfg.Policy)
	if refusal == nil {
		return nil
	}
	m.Forget(p.UID)
	for _, provider := range m.cfg.Providers {
		provider.Release(p.UID)
	}
	return refusal
}

// Readmit is Admit for a pod that an earlier agent admitted. It keeps what it has, however far that
// lies from each other under the policy of now. The error is a *Refusal of a provider. Also then
// the pod keeps what it has: its containers may run.
func (m *Manager) Readmit(p *v1.Pod) error {
	policy := m.cfg.Policy
	if policy != None {
		policy = BestEffort
	}
	if refusal := m.assign(p, policy); refusal != nil {
		return refusal
	}
	return nil
}

// assign has each container given what it asks for. policy decides what is refused.
func (m *Manager) assign(p *v1.Pod, policy string) *Refusal {
	m.metrics.requests.Inc()
	start := time.Now()
	defer func() { m.metrics.duration.Observe(float64(time.Since(start)) / float64(time.Millisecond)) }()

	var near Hint
	var refusal *Refusal
	if policy != None && m.cfg.Scope == PodScope {
		near, refusal = m.decide(p, "", policy)
	}
	for c := range pod.Containers(&p.Spec) {
		if policy != None && m.cfg.Scope == ContainerScope {
			near, refusal = m.decide(p, c.Name, policy)
		}
		if refusal != nil {
			m.metrics.errors.Inc()
			return refusal
		}
		m.remember(p.UID, c.Name, near)
		if err := m.allocate(p, c, near); err != nil {
			return Unexpected(err)
		}
	}
	return nil
}

// decide asks all providers, merges what they say, and judges it. Without a container it is about
// the whole pod.
func (m *Manager) decide(p *v1.Pod, container, policy string) (Hint, *Refusal) {
	hints := make([]Hints, 0, len(m.cfg.Providers))
	for _, provider := range m.cfg.Providers {
		if container == "" {
			hints = append(hints, provider.PodHints(p))
		} else {
			hints = append(hints, provider.Hints(p, pod.FindContainer(&p.Spec, container)))
		}
	}
	merged := m.merging.merge(hints)
	if m.cfg.Policy == SingleNUMANode {
		m.metrics.alignment.count(merged, m.cfg.Scope)
	}
	why := "policy " + policy + "; " + describe(hints, merged)
	if !admits(policy, merged) {
		m.cfg.Note(p, container, "refuse: "+affinityMessage, why)
		return merged, &Refusal{Reason: affinityReason, Message: affinityMessage}
	}
	decision := "allocate on NUMA nodes " + merged.Nodes.String()
	if merged.Nodes == 0 {
		decision = "allocate on any NUMA node"
	}
	m.cfg.Note(p, container, decision, why)
	return merged, nil
}

func (m *Manager) allocate(p *v1.Pod, c *v1.Container, near Hint) error {
	for _, provider := range m.cfg.Providers {
		if err := provider.Allocate(p, c, near); err != nil {
			return err
		}
	}
	return nil
}

// Unexpected returns the refusal for the error of a provider.
func Unexpected(err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Reason: unexpectedReason, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

func (m *Manager) remember(uid pod.UID, container string, h Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hints[uid] == nil {
		m.hints[uid] = map[string]Hint{}
	}
	m.hints[uid][container] = h
}

// Affinity returns the hint that a container was given its things by; the zero Hint if it has none.
func (m *Manager) Affinity(uid pod.UID, container string) Hint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints[uid][container]
}

// Forget drops the hints of a pod.
func (m *Manager) Forget(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.hints, uid)
}

// Retain drops the hints of all pods but those to keep.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.hints {
		if !keep[uid] {
			delete(m.hints, uid)
		}
	}
}
