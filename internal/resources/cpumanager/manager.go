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

// The policies (cpuManagerPolicy).
const (
	None   = "none"
	Static = "static"
)

// Alignment counts CPUs that were given without crossing a boundary, or could not be;
// topologymanager.Alignment is one.
type Alignment interface {
	Aligned(scope, boundary string)
	Failed(scope, boundary string)
}

// Config is what a CPUManager needs.
type Config struct {
	// Policy is None or Static, Options those of the latter (cpuManagerPolicyOptions).
	Policy  string
	Options map[string]string
	Gates   Gates
	// TopologyPolicy is topologyManagerPolicy.
	TopologyPolicy string
	Machine        *machine.Machine
	// ReservedMilliCPU is what systemReserved and kubeReserved have of CPU together, in
	// thousandths. ReservedCPUs, if there are any, are reserved instead (reservedSystemCPUs).
	ReservedMilliCPU int64
	ReservedCPUs     cpuset.CPUSet
	// StateFile is the path of cpu_manager_state. Its folder must be there at Load.
	StateFile string
	// Runtime changes the CPUs of containers that run.
	Runtime Runtime
	// Changed gets every pod whose observation changed; Newest returns that.
	Changed *pod.Inbox[pod.UID]
	Newest  func(uid pod.UID) (*pod.Status, bool)
	// Alignment may be nil. Metrics is where metrics are registered; nil: nowhere.
	Alignment Alignment
	Metrics   prometheus.Registerer
	Journal   *journal.Journal
	Log       *slog.Logger
}

// CPUManager gives containers CPUs. It is safe for concurrent use.
type CPUManager struct {
	cfg      Config
	options  options
	layout   *layout
	reserved cpuset.CPUSet // empty with the policy none
	metrics  *metrics
	changed  chan struct{}  // capacity 1: the pools have changed, or the file has to be written
	file     health.Latch   // of the last write
	stuck    health.Latches // of containers that the runtime does not move

	// deciding is held from a decision to the end of its write, so that the next one sees it and
	// the file never goes back. What reads takes mu alone, and waits for no disk.
	deciding sync.Mutex

	mu     sync.Mutex
	pools  pools                          // guarded by mu; changed with deciding held
	handed map[pod.UID]map[string]handout // guarded by mu
}

// handout is what a container was told to be created with.
type handout struct {
	cpus string
	at   time.Time
}

// New checks the configuration against the machine. An error names the field and the fix.
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

// prepare checks what the policy static needs, and finds the reserved CPUs.
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

// reserve returns the CPUs that are kept for the host.
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

// now returns the pools as they are.
func (m *CPUManager) now() pools {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pools
}

// publish makes the pools those that hold, and has containers that run follow.
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

// Exclusive returns the CPUs that the container has to itself; none is the empty set.
func (m *CPUManager) Exclusive(uid pod.UID, container string) cpuset.CPUSet {
	return m.now().owned[uid][container]
}

// CPUs returns the CPUs that the container is to be created with, as the kernel's files and CRI
// have them ("0-3,8"); "" with the policy none: all. What it returns is remembered, so that the
// container need not be told again once it runs.
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

// wantLocked returns the CPUs that the container is to run on.
//
// Differs from the kubelet: where all CPUs were given away (strict-cpu-reservation), the others run
// on the reserved CPUs. No set at all would let them run everywhere.
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

// Allocatable returns the CPUs that pods can have to themselves: all but the reserved ones; none
// with the policy none.
func (m *CPUManager) Allocatable() cpuset.CPUSet {
	if !m.isStatic() {
		return cpuset.New()
	}
	return m.layout.online.Difference(m.reserved)
}

// Common returns the CPUs that no container has to itself: those that are reserved, and those that
// all containers run on that have none of their own. With the policy none it is not ok.
func (m *CPUManager) Common() (reserved, shared cpuset.CPUSet, ok bool) {
	return m.reserved, m.now().shared, m.isStatic()
}

// Persistence returns why the file cannot be written, or nil.
func (m *CPUManager) Persistence() error { return m.file.Err() }

// Health returns which containers run on CPUs that they should not, and why, or nil.
func (m *CPUManager) Health() error { return m.stuck.Err() }
