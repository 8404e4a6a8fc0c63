package cpumanager

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

// Policies (cpuManagerPolicy).
const (
	None   = "none"
	Static = "static"
)

// Alignment counts allocations that are aligned at a boundary, and failures to align them;
// topologymanager.Alignment implements it.
type Alignment interface {
	Aligned(scope, boundary string)
	Failed(scope, boundary string)
}

// Config configures a CPUManager.
type Config struct {
	// Policy is None or Static; Options are the options of Static (cpuManagerPolicyOptions).
	Policy  string
	Options map[string]string
	Gates   Gates
	// TopologyPolicy is topologyManagerPolicy.
	TopologyPolicy string
	Machine        *machine.Machine
	// ReservedMilliCPU is the CPU of systemReserved and kubeReserved together, in millicores. If
	// ReservedCPUs (reservedSystemCPUs) is not empty, it is used instead.
	ReservedMilliCPU int64
	ReservedCPUs     cpuset.CPUSet
	// StateFile is the path of cpu_manager_state. Its directory must exist when Load is called.
	StateFile string
	// Runtime updates the CPUs of running containers.
	Runtime Runtime
	// Changed receives the UID of each pod whose status changed; Newest returns the newest status.
	Changed *pod.Inbox[pod.UID]
	Newest  func(uid pod.UID) (*pod.Status, bool)
	// Alignment may be nil: alignment is not counted. Metrics is the registry for metrics; nil
	// means that they are not registered.
	Alignment Alignment
	Metrics   prometheus.Registerer
	Journal   *journal.Journal
	Log       *slog.Logger
}

// CPUManager assigns CPUs to containers. It is safe for concurrent use.
type CPUManager struct {
	policy     *policy
	store      *store
	reconciler *reconciler
	metrics    *metrics
	alignment  Alignment
	journal    *journal.Journal
	log        *slog.Logger
}

// New validates the configuration against the machine. Errors name the field and the remedy.
func New(cfg Config) (*CPUManager, error) {
	l, err := newLayout(cfg.Machine)
	if err != nil {
		return nil, err
	}
	p, err := newPolicy(&cfg, l)
	if err != nil {
		return nil, err
	}
	if cfg.Alignment == nil {
		cfg.Alignment = topologymanager.NewAlignment(nil)
	}
	st := &store{path: cfg.StateFile, policy: cfg.Policy, initial: map[pod.UID]map[string]initialCPUs{}}
	return &CPUManager{
		policy: p, store: st, metrics: newMetrics(cfg.Metrics, l), alignment: cfg.Alignment, journal: cfg.Journal, log: cfg.Log,
		reconciler: &reconciler{
			policy: p, store: st, runtime: cfg.Runtime, changed: cfg.Changed, newest: cfg.Newest, journal: cfg.Journal,
			wakeUp: make(chan struct{}, 1), containers: map[pod.ContainerID]*container{}, results: make(chan result),
		},
	}, nil
}

// publish replaces the pools and wakes the reconciler, which updates running containers.
func (m *CPUManager) publish(p pools) {
	m.store.set(p)
	if m.policy.static {
		m.metrics.set(m.policy.layout, p)
	}
	m.reconciler.wake()
}

// Exclusive returns the exclusive CPUs of the container; the set may be empty.
func (m *CPUManager) Exclusive(uid pod.UID, container string) cpuset.CPUSet {
	return m.store.current().owned[uid][container]
}

// CPUs returns the cpuset for a container that is about to be created, in the kernel's list format
// ("0-3,8"), as in CRI; "" with the policy none: all CPUs. The result is stored, so that the
// running container need not be updated.
func (m *CPUManager) CPUs(uid pod.UID, container string) string {
	if !m.policy.static {
		return ""
	}
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	cpus := m.policy.cpusOf(s.pools, uid, container)
	if s.initial[uid] == nil {
		s.initial[uid] = map[string]initialCPUs{}
	}
	s.initial[uid][container] = initialCPUs{cpus, time.Now()}
	return cpus
}

// Allocatable returns the CPUs that can be exclusive: all but the reserved ones; empty with the
// policy none.
func (m *CPUManager) Allocatable() cpuset.CPUSet {
	if !m.policy.static {
		return cpuset.New()
	}
	return m.policy.layout.online.Difference(m.policy.reserved)
}

// Common returns the CPUs that are not exclusive: the reserved CPUs, and the CPUs shared by
// containers without exclusive CPUs. ok is false with the policy none.
func (m *CPUManager) Common() (reserved, shared cpuset.CPUSet, ok bool) {
	return m.policy.reserved, m.store.current().shared, m.policy.static
}

// Persistence returns the error of the last write of the file, or nil.
func (m *CPUManager) Persistence() error { return m.store.writing.Err() }

// Health returns an error that names the containers that the runtime failed to update, or nil.
func (m *CPUManager) Health() error { return m.reconciler.stuck.Err() }
