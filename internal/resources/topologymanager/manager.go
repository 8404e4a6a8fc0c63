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

// Config configures a Manager.
type Config struct {
	// Policy, Scope and Options are those of the KubeletConfiguration.
	Policy, Scope string
	Options       map[string]string
	Machine       *machine.Machine
	// Providers are called in this order: devices, CPUs, memory.
	Providers []Provider
	// Metrics is the registry for metrics; nil means that they are not registered.
	Metrics prometheus.Registerer
	// Note records a decision about a pod or one of its containers ("": all of them), and the
	// reason.
	Note func(p *v1.Pod, container, decision, why string)
}

// Manager (topologyManager) decides which NUMA nodes containers use, and has the providers
// allocate. Calls of Admit, Readmit and Forget must not overlap; Affinity is safe for concurrent
// use.
type Manager struct {
	cfg     Config
	merging merging
	metrics *metrics

	mu    sync.Mutex
	hints map[pod.UID]map[string]Hint // guarded by mu; by container
}

// New returns a Manager. It returns an error that names the invalid configuration field, or that
// the machine has too many NUMA nodes for the policy.
func New(cfg Config) (*Manager, error) {
	m, err := newMerging(&cfg)
	if err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg, merging: m, metrics: newMetrics(cfg.Metrics), hints: map[pod.UID]map[string]Hint{}}, nil
}

// Reasons and messages of rejections.
const (
	affinityReason   = "TopologyAffinityError"
	affinityMessage  = "Resources cannot be allocated with Topology locality"
	unexpectedReason = "UnexpectedAdmissionError"
)

// Admit has the providers allocate the requests of the pod's containers, init containers first. An
// error is a *Refusal, and the pod has no allocations then.
//
// Differs from the kubelet: the allocations of a rejected pod are released at once, not when the
// pod is found to be deleted.
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

// Readmit is Admit for a pod that an earlier agent admitted. Its allocations stay, even if they are
// not aligned under the current policy. An error is a *Refusal of a provider; the allocations stay
// then, too, because the pod's containers may be running.
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

// assign allocates the requests of each container. policy decides which pods are rejected.
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

// decide collects the hints of all providers, merges them, and applies the policy. An empty
// container means the whole pod.
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

// Unexpected returns the rejection for an error of a provider.
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

// Affinity returns the hint that was used for a container's allocation; the zero Hint if there is
// none.
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

// Retain drops the hints of all pods that are not in keep.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.hints {
		if !keep[uid] {
			delete(m.hints, uid)
		}
	}
}
