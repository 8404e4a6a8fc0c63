package cpumanager

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/cpuset"

	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/machine"
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
	// Alignment may be nil. Metrics is the registry for metrics; nil means that they are not
	// registered.
	Alignment Alignment
	Metrics   prometheus.Registerer
	Journal   *journal.Journal
	Log       *slog.Logger
}

// CPUManager assigns CPUs to containers. It is safe for concurrent use.
type CPUManager struct {
	cfg      Config
	options  options
	layout   *layout
	reserved cpuset.CPUSet // empty with the policy none
	metrics  *metrics
	changed  chan struct{}  // capacity 1: wakes Run
	file     health.Latch   // error of the last write
	stuck    health.Latches // containers that the runtime failed to update

	// deciding is held from a decision to the end of its write, so that the next decision sees it
	// and writes are in order. Readers take only mu and do not wait for the disk.
	deciding sync.Mutex

	mu     sync.Mutex
	pools  pools                          // guarded by mu; changed with deciding held
	handed map[pod.UID]map[string]handout // guarded by mu
}

// handout is the cpuset that CPUs returned for a container to be created.
type handout struct {
	cpus string
	at   time.Time
}

// New validates the configuration against the machine. Errors name the field and the remedy.
func New(cfg Config) (*CPUManager, error) {
	l, err := newLayout(cfg.Machine)
	if err != nil {
		return nil, err
	}
	m := &CPUManager{
		cfg: cfg, layout: l, changed: make(chan struct{}, 1),
		pools: pools{}, handed: map[pod.UID]map[string]handout{},
	}
	switch {
	case cfg.Policy == None && len(cfg.Options) > 0:
		//lint:ignore ST1005 the words are the kubelet's
		return nil, fmt.Errorf("None policy: received unsupported options=%v", cfg.Options)
	case cfg.Policy == None:
	case cfg.Policy == Static:
		if err := m.prepare(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("unknown policy: %q; cpuManagerPolicy must be %s or %s", cfg.Policy, None, Static)
	}
	m.metrics = newMetrics(cfg.Metrics, l)
	return m, nil
}

// prepare validates the configuration of the policy static, and determines the reserved CPUs.
func (m *CPUManager) prepare() error {
	var err error
	if m.options, err = parseOptions(m.cfg.Options, m.cfg.Gates); err != nil {
		return err
	}
	if m.options[alignBySocket] {
		if m.cfg.TopologyPolicy == "single-numa-node" {
			return errors.New("cpuManagerPolicyOptions: align-by-socket is incompatible with topologyManagerPolicy single-numa-node; change one of them")
		}
		if m.layout.sockets > len(m.layout.nodes) {
			return fmt.Errorf("cpuManagerPolicyOptions: align-by-socket is incompatible with this machine, which has more sockets (%d) than NUMA nodes (%d); turn it off",
				m.layout.sockets, len(m.layout.nodes))
		}
	}
	m.reserved, err = m.reserve()
	return err
}

// reserve returns the reserved CPUs.
func (m *CPUManager) reserve() (cpuset.CPUSet, error) {
	if given := m.cfg.ReservedCPUs; !given.IsEmpty() {
		if missing := given.Difference(m.layout.online); !missing.IsEmpty() {
			return given, fmt.Errorf("reservedSystemCPUs: %s are not online; the CPUs of this machine are %s", missing, m.layout.online)
		}
		return given, nil
	}
	if m.cfg.ReservedMilliCPU <= 0 {
		return cpuset.New(), errors.New("the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")
	}
	n := int((m.cfg.ReservedMilliCPU + 999) / 1000)
	cpus, err := takeCPUs(m.layout.machine, m.layout.online, n, TakeOptions{GroupSize: 1})
	if err != nil {
		return cpus, fmt.Errorf("systemReserved and kubeReserved: cpu: %w", err)
	}
	return cpus, nil
}

func (m *CPUManager) isStatic() bool { return m.cfg.Policy == Static }

// now returns the current pools.
func (m *CPUManager) now() pools {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pools
}

// publish replaces the pools and wakes Run, which updates running containers.
func (m *CPUManager) publish(p pools) {
	m.mu.Lock()
	m.pools = p
	m.mu.Unlock()
	if m.isStatic() {
		m.metrics.set(m.layout, p)
	}
	m.wake()
}

func (m *CPUManager) wake() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Exclusive returns the exclusive CPUs of the container; the set may be empty.
func (m *CPUManager) Exclusive(uid pod.UID, container string) cpuset.CPUSet {
	return m.now().owned[uid][container]
}

// CPUs returns the cpuset for a container that is about to be created, in the kernel's list format
// ("0-3,8"), as in CRI; "" with the policy none: all CPUs. The result is stored, so that the
// running container need not be updated.
func (m *CPUManager) CPUs(uid pod.UID, container string) string {
	if !m.isStatic() {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	cpus := m.wantLocked(uid, container)
	if m.handed[uid] == nil {
		m.handed[uid] = map[string]handout{}
	}
	m.handed[uid][container] = handout{cpus, time.Now()}
	return cpus
}

// wantLocked returns the CPUs that the container must run on. mu must be held.
//
// Differs from the kubelet: if no shared CPUs are left (strict-cpu-reservation), the other
// containers run on the reserved CPUs. An empty set would let them run on all CPUs.
func (m *CPUManager) wantLocked(uid pod.UID, container string) string {
	switch own := m.pools.owned[uid][container]; {
	case !own.IsEmpty():
		return own.String()
	case m.pools.shared.IsEmpty():
		return m.reserved.String()
	default:
		return m.pools.shared.String()
	}
}

// Allocatable returns the CPUs that can be exclusive: all but the reserved ones; empty with the
// policy none.
func (m *CPUManager) Allocatable() cpuset.CPUSet {
	if !m.isStatic() {
		return cpuset.New()
	}
	return m.layout.online.Difference(m.reserved)
}

// Common returns the CPUs that are not exclusive: the reserved CPUs, and the CPUs shared by
// containers without exclusive CPUs. ok is false with the policy none.
func (m *CPUManager) Common() (reserved, shared cpuset.CPUSet, ok bool) {
	return m.reserved, m.now().shared, m.isStatic()
}

// Persistence returns the error of the last write of the file, or nil.
func (m *CPUManager) Persistence() error { return m.file.Err() }

// Health returns an error that names the containers that the runtime failed to update, or nil.
func (m *CPUManager) Health() error { return m.stuck.Err() }
