// Package memorymanager assigns memory and hugepages of as few NUMA nodes as possible to containers
// of Guaranteed pods, so that the requested memory is available and local (KEP-1769).
//
// Owns: the memory assignment of containers; the file memory_manager_state.
// Reads: the layout of the machine, reservations, pods' resources.
// Never: changes a cgroup: nodes are set when a container is created; allocates memory twice.
package memorymanager

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

// Policies (memoryManagerPolicy).
const (
	None   = "None"   // no allocations and no reservations
	Static = "Static" // containers of Guaranteed pods get allocations
)

// Config configures a Manager.
type Config struct {
	// Policy is memoryManagerPolicy.
	Policy  string
	Machine *machine.Machine
	// Reserved is the reserved memory of each node (reservedMemory).
	Reserved []config.MemoryReservation
	// NodeAllocatableReservation is what is unavailable to pods: reservations and the hard eviction
	// threshold. Resources that are not memory or hugepages are ignored.
	NodeAllocatableReservation v1.ResourceList
	// StateFile is the path of memory_manager_state; "" disables persistence.
	StateFile string
	// Metrics is the registry for metrics; nil means that they are not registered.
	Metrics prometheus.Registerer
	Journal *journal.Journal
	Log     *slog.Logger
}

// Manager (memoryManager) is a topologymanager.Provider of memory and hugepages. Calls of Load,
// Allocate, Release, Retain and Creating must not overlap; the other methods are safe for
// concurrent use.
type Manager struct {
	cfg     Config
	metrics *metrics
	empty   nodeMap // state without allocations; nil without policy Static
	writing health.Latch

	mu       sync.Mutex
	nodes    nodeMap     // guarded by mu; derived from assigned
	assigned assignments // guarded by mu
}

// New returns a Manager without allocations. It returns an error if the configuration is invalid.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, nodes: nodeMap{}, assigned: assignments{}}
	switch cfg.Policy {
	case None:
	case Static:
		empty, err := layout(cfg.Machine, cfg.Reserved, cfg.NodeAllocatableReservation)
		if err != nil {
			return nil, err
		}
		m.empty, m.nodes = empty, empty
	default:
		return nil, fmt.Errorf("memoryManagerPolicy: unknown policy %q: set %s or %s", cfg.Policy, None, Static)
	}
	m.metrics = newMetrics(cfg.Metrics)
	return m, nil
}

// errDifferent means that the machine or its reservations have changed since the file was written.
var errDifferent = errors.New("[memorymanager] the expected machine state is different from the real one")

// Load reads the allocations of an earlier agent or a kubelet, and creates the file if it does not
// exist. An error is fatal and contains the remedy: the allocations of running containers are
// unknown.
func (m *Manager) Load() error {
	if m.cfg.StateFile == "" {
		return nil
	}
	content, err := os.ReadFile(m.cfg.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return m.save(m.nodes, m.assigned)
	}
	var s state
	if err == nil {
		s, err = decode(content)
	}
	if err == nil && s.PolicyName != m.cfg.Policy {
		err = fmt.Errorf("configured policy %q differs from state checkpoint policy %q", m.cfg.Policy, s.PolicyName)
	}
	if err != nil {
		return fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet", err, m.cfg.StateFile)
	}
	if m.cfg.Policy != Static {
		return nil
	}
	nodes, err := m.empty.fill(s.Entries)
	differs := fmt.Sprint(err)
	if err == nil {
		differs = difference(s.MachineState, nodes)
	}
	if differs != "" {
		return fmt.Errorf("%w: %s; drain this node and delete %s", errDifferent, differs, m.cfg.StateFile)
	}
	m.set(nodes, s.Entries)
	return nil
}

func (m *Manager) save(nodes nodeMap, assigned assignments) error {
	if m.cfg.StateFile == "" {
		return nil
	}
	content, err := state{PolicyName: m.cfg.Policy, MachineState: nodes, Entries: assigned}.encode()
	if err != nil {
		return err
	}
	err = checkpoint.Write(m.cfg.StateFile, 0o600, content)
	m.writing.Set(err)
	return err
}

// Persistence returns the error of the last write of the file, or nil.
func (m *Manager) Persistence() error { return m.writing.Err() }

func (m *Manager) set(nodes nodeMap, assigned assignments) {
	m.mu.Lock()
	m.nodes, m.assigned = nodes, assigned
	m.mu.Unlock()
}

func (m *Manager) now() (nodeMap, assignments) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes, m.assigned
}

// Hints returns the topology hints for the container's request, the same for each type of memory,
// or the nodes of its existing allocation. Only Guaranteed pods have hints.
func (m *Manager) Hints(p *v1.Pod, c *v1.Container) topologymanager.Hints {
	want := requestOf(c)
	if m.empty == nil || len(want) == 0 || !concerns(p) {
		return nil
	}
	nodes, assigned := m.now()
	has := assigned[p.UID]
	if blocks := has[c.Name]; len(blocks) > 0 {
		return want.hints([]topologymanager.Hint{{Nodes: blocks[0].nodes(), Preferred: true}})
	}
	if wasGivenBack(p, c.Name, has) {
		return nil
	}
	return want.hints(listOf(nodes, want, reusable(endedBefore(p, c.Name), has)))
}

// PodHints returns the topology hints for all containers of the pod together. A pod whose
// containers have allocations on different nodes has no preference.
func (m *Manager) PodHints(p *v1.Pod) topologymanager.Hints {
	want := podRequest(p)
	if m.empty == nil || len(want) == 0 || !concerns(p) {
		return nil
	}
	nodes, assigned := m.now()
	var on []topologymanager.Nodes
	for _, blocks := range assigned[p.UID] {
		for _, b := range blocks {
			on = append(on, b.nodes())
		}
	}
	slices.Sort(on)
	switch on = slices.Compact(on); len(on) {
	case 0:
		return want.hints(listOf(nodes, want, nil))
	case 1:
		return want.hints([]topologymanager.Hint{{Nodes: on[0], Preferred: true}})
	}
	return nil
}

// listOf returns the hints for the request; the list may be empty but is not nil.
func listOf(nodes nodeMap, want request, again reuse) []topologymanager.Hint {
	return slices.AppendSeq([]topologymanager.Hint{}, nodes.places(want, again))
}

// Allocate allocates memory to the container and persists the allocation. If the nodes of the hint
// do not suffice, it adds others. As in the kubelet, it returns an error if no nodes suffice, if
// they are not preferred although the hint is, or if they overlap another group of nodes.
func (m *Manager) Allocate(p *v1.Pod, c *v1.Container, near topologymanager.Hint) error {
	want := requestOf(c)
	if m.empty == nil || len(want) == 0 || !concerns(p) {
		return nil
	}
	nodes, assigned := m.now()
	has := assigned[p.UID]
	if _, there := has[c.Name]; there || wasGivenBack(p, c.Name, has) {
		return nil
	}
	m.metrics.requests.Inc()
	on, err := nodes.place(want, reusable(endedBefore(p, c.Name), has), near)
	if err == nil {
		err = m.change(assigned.with(p.UID, give(p, c.Name, want, on, has)))
	}
	if err != nil {
		m.metrics.errors.Inc()
		return err
	}
	m.note(p, c.Name, fmt.Sprintf("give memory on NUMA nodes %s", on), fmt.Sprintf("%s, near %s", want, near.Nodes))
	return nil
}

// change persists and applies the assignments. On an error nothing changes.
func (m *Manager) change(assigned assignments) error {
	nodes, err := m.empty.fill(assigned)
	if err == nil {
		err = m.save(nodes, assigned)
	}
	if err == nil {
		m.set(nodes, assigned)
	}
	return err
}

// Creating releases what is left of the allocations of plain init containers before the given
// container, which have exited. Call it before the container is created. If the write of the file
// fails, it returns the error and releases nothing.
func (m *Manager) Creating(p *v1.Pod, container string) error {
	_, assigned := m.now()
	left := maps.Clone(assigned[p.UID])
	for _, ended := range endedBefore(p, container) {
		delete(left, ended)
	}
	if len(left) == len(assigned[p.UID]) {
		return nil
	}
	return m.change(assigned.with(p.UID, left))
}

// Release releases the memory of the pod. If the file cannot be written, the memory is free
// nevertheless, and the next change persists it.
func (m *Manager) Release(uid pod.UID) {
	_, assigned := m.now()
	m.drop(assigned, func(other pod.UID) bool { return other == uid })
}

// Retain releases the memory of all pods that are not in keep.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	_, assigned := m.now()
	m.drop(assigned, func(uid pod.UID) bool { return !keep[uid] })
}

func (m *Manager) drop(assigned assignments, gone func(pod.UID) bool) {
	rest := maps.Clone(assigned)
	maps.DeleteFunc(rest, func(uid pod.UID, _ map[string][]Block) bool { return gone(uid) })
	if m.empty == nil || len(rest) == len(assigned) {
		return
	}
	nodes, err := m.empty.fill(rest)
	if err != nil {
		panic(err) // a subset of fitting assignments fits
	}
	if err := m.save(nodes, rest); err != nil {
		m.cfg.Log.Error("the memory of a pod that is gone is still in the file", "error", err)
	}
	m.set(nodes, rest)
}

// Nodes returns the NUMA nodes of a container's memory, ascending, for cpuset.mems; nil means any.
func (m *Manager) Nodes(uid pod.UID, container string) []int {
	var on topologymanager.Nodes
	for _, b := range m.Memory(uid, container) {
		on |= b.nodes()
	}
	if on == 0 {
		return nil
	}
	return on.List()
}

// Memory returns the allocation of a container, by type; nil if there is none.
func (m *Manager) Memory(uid pod.UID, container string) []Block {
	_, assigned := m.now()
	return slices.Clone(assigned[uid][container])
}

// Allocatable returns the allocatable memory, sorted by node and type, including allocated memory.
func (m *Manager) Allocatable() []Block {
	var out []Block
	for _, id := range slices.Sorted(maps.Keys(m.empty)) {
		tables := m.empty[id].MemoryMap
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			if size := tables[name].Allocatable; size > 0 {
				out = append(out, Block{NUMAAffinity: []int{id}, Type: name, Size: size})
			}
		}
	}
	return out
}

// NodeMemory is the memory of one type on a NUMA node, in bytes.
type NodeMemory struct {
	Node int             `json:"node"`
	Type v1.ResourceName `json:"type"`
	// Allocatable is what containers can have; Free is the part that is not allocated.
	Allocatable uint64 `json:"allocatable"`
	Free        uint64 `json:"free"`
	// Group are the nodes that the node is currently allocated together with, including itself.
	Group []int `json:"group,omitempty"`
}

// Nodewise returns the memory of each node, sorted by node and type; nil with the policy None.
func (m *Manager) Nodewise() []NodeMemory {
	if m.empty == nil {
		return nil
	}
	nodes, _ := m.now()
	var out []NodeMemory
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		tables := nodes[id].MemoryMap
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			if t := tables[name]; t.Allocatable > 0 {
				n := NodeMemory{Node: id, Type: name, Allocatable: t.Allocatable, Free: t.Free}
				if group := nodes[id].Cells; len(group) > 1 {
					n.Group = group
				}
				out = append(out, n)
			}
		}
	}
	return out
}

func (m *Manager) note(p *v1.Pod, container, decision, why string) {
	m.cfg.Journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "memory", Container: container, Decision: decision, Why: why,
	})
}
