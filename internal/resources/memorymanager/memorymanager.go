// Package memorymanager gives containers of Guaranteed pods their memory and huge pages on as few
// NUMA nodes as can be, so that what they were promised is there, and near (KEP-1769).
//
// Owns: which container has memory on which nodes; the file memory_manager_state.
// Reads: the layout of the machine, what is reserved for the host, pods' resources.
// Never: touches a cgroup: the nodes are set when a container is made; gives memory twice.
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

// The policies.
const (
	None   = "None"   // nothing is given, and nothing is kept apart
	Static = "Static" // containers of Guaranteed pods get theirs
)

// Config is what a Manager needs.
type Config struct {
	// Policy is that of the KubeletConfiguration.
	Policy  string
	Machine *machine.Machine
	// Reserved is what is kept for the host on each node (reservedMemory).
	Reserved []config.MemoryReservation
	// NodeAllocatableReservation is what pods cannot have: what is reserved for daemons, and the
	// hard threshold of eviction. Other resources than types of memory do not matter.
	NodeAllocatableReservation v1.ResourceList
	// StateFile keeps what was given; "" keeps it in memory alone.
	StateFile string
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	// Journal may be nil.
	Journal *journal.Journal
	Log     *slog.Logger
}

// Manager (memoryManager) is a topologymanager.Provider of memory and huge pages. Load, Allocate,
// Release, Retain and Creating do not overlap; the others can be called at any time.
type Manager struct {
	cfg     Config
	metrics *metrics
	empty   nodeMap // what the machine has; nil without policy Static
	writing health.Latch

	mu    sync.Mutex
	nodes nodeMap     // guarded by mu; what follows from given
	given assignments // guarded by mu
}

// New returns a manager that gave nothing yet. The error is one of the configuration.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, nodes: nodeMap{}, given: assignments{}}
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

// errDifferent is that the machine, or what is reserved of it, is not what it was when memory of it
// was given.
var errDifferent = errors.New("[memorymanager] the expected machine state is different from the real one")

// Load reads what an earlier agent, or a kubelet, gave, and makes the file if there is none. The
// error is fatal, and says what to do: containers that run lie where nobody knows.
func (m *Manager) Load() error {
	if m.cfg.StateFile == "" {
		return nil
	}
	content, err := os.ReadFile(m.cfg.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return m.save(m.nodes, m.given)
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

// save writes the file durably.
func (m *Manager) save(nodes nodeMap, given assignments) error {
	if m.cfg.StateFile == "" {
		return nil
	}
	content, err := state{PolicyName: m.cfg.Policy, MachineState: nodes, Entries: given}.encode()
	if err != nil {
		return err
	}
	err = checkpoint.Write(m.cfg.StateFile, 0o600, content)
	m.writing.Set(err)
	return err
}

// Persistence returns why the file cannot be written, or nil.
func (m *Manager) Persistence() error { return m.writing.Err() }

func (m *Manager) set(nodes nodeMap, given assignments) {
	m.mu.Lock()
	m.nodes, m.given = nodes, given
	m.mu.Unlock()
}

func (m *Manager) now() (nodeMap, assignments) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes, m.given
}

// Hints says on which nodes what the container asks for could lie, the same for each type of
// memory; on which it lies, if it has it already. Nobody but Guaranteed pods has a preference.
func (m *Manager) Hints(p *v1.Pod, c *v1.Container) topologymanager.Hints {
	want := requestOf(c)
	if m.empty == nil || len(want) == 0 || !concerns(p) {
		return nil
	}
	nodes, given := m.now()
	has := given[p.UID]
	if blocks := has[c.Name]; len(blocks) > 0 {
		return want.hints([]topologymanager.Hint{{Nodes: blocks[0].nodes(), Preferred: true}})
	}
	if wasGivenBack(p, c.Name, has) {
		return nil
	}
	return want.hints(listOf(nodes, want, reusable(endedBefore(p, c.Name), has)))
}

// PodHints says it of all containers of the pod together. Of a pod whose containers have memory on
// different nodes already, it has no preference.
func (m *Manager) PodHints(p *v1.Pod) topologymanager.Hints {
	want := podRequest(p)
	if m.empty == nil || len(want) == 0 || !concerns(p) {
		return nil
	}
	nodes, given := m.now()
	var on []topologymanager.Nodes
	for _, blocks := range given[p.UID] {
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

// listOf returns the places of the request; an empty list, which is not nil, if there is none.
func listOf(nodes nodeMap, want request, again reuse) []topologymanager.Hint {
	return slices.AppendSeq([]topologymanager.Hint{}, nodes.places(want, again))
}

// Allocate gives the container its memory, and returns when that is on disk. Where the nodes of the
// hint do not have as much, others are added. Then the error is, as of the kubelet, that there are
// none, that they are more than what is preferred, or that others have theirs on a part of them.
func (m *Manager) Allocate(p *v1.Pod, c *v1.Container, near topologymanager.Hint) error {
	want := requestOf(c)
	if m.empty == nil || len(want) == 0 || !concerns(p) {
		return nil
	}
	nodes, given := m.now()
	has := given[p.UID]
	if _, there := has[c.Name]; there || wasGivenBack(p, c.Name, has) {
		return nil
	}
	m.metrics.requests.Inc()
	on, err := nodes.place(want, reusable(endedBefore(p, c.Name), has), near)
	if err == nil {
		err = m.change(given.with(p.UID, give(p, c.Name, want, on, has)))
	}
	if err != nil {
		m.metrics.errors.Inc()
		return err
	}
	m.note(p, c.Name, fmt.Sprintf("give memory on NUMA nodes %s", on), fmt.Sprintf("%s, near %s", want, near.Nodes))
	return nil
}

// change makes the assignments those of the machine. If they do not fit, or cannot be written,
// everything stays as it was.
func (m *Manager) change(given assignments) error {
	nodes, err := m.empty.fill(given)
	if err == nil {
		err = m.save(nodes, given)
	}
	if err == nil {
		m.set(nodes, given)
	}
	return err
}

// Creating is to be called before a container of the pod is created, and gives back what is left of
// the plain init containers before it, which have ended. The error is that of the disk; then they
// still have it.
func (m *Manager) Creating(p *v1.Pod, container string) error {
	_, given := m.now()
	left := maps.Clone(given[p.UID])
	for _, ended := range endedBefore(p, container) {
		delete(left, ended)
	}
	if len(left) == len(given[p.UID]) {
		return nil
	}
	return m.change(given.with(p.UID, left))
}

// Release takes back what the pod has. If the disk does not take it, it is free all the same, and
// the next change writes it.
func (m *Manager) Release(uid pod.UID) {
	_, given := m.now()
	m.drop(given, func(other pod.UID) bool { return other == uid })
}

// Retain takes back what all pods have but those to keep.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	_, given := m.now()
	m.drop(given, func(uid pod.UID) bool { return !keep[uid] })
}

func (m *Manager) drop(given assignments, gone func(pod.UID) bool) {
	rest := maps.Clone(given)
	maps.DeleteFunc(rest, func(uid pod.UID, _ map[string][]Block) bool { return gone(uid) })
	if m.empty == nil || len(rest) == len(given) {
		return
	}
	nodes, err := m.empty.fill(rest)
	if err != nil {
		panic(err) // less than what fitted fits
	}
	if err := m.save(nodes, rest); err != nil {
		m.cfg.Log.Error("the memory of a pod that is gone is still in the file", "error", err)
	}
	m.set(nodes, rest)
}

// Nodes returns the NUMA nodes of a container's memory, ascending: its cpuset.mems. Nil is any.
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

// Memory returns what a container has, by type; nil if nothing was given to it.
func (m *Manager) Memory(uid pod.UID, container string) []Block {
	_, given := m.now()
	return slices.Clone(given[uid][container])
}

// Allocatable returns what containers can have on each node, by node and type, whether it was given
// or not.
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

// NodeMemory is the memory of one type that a NUMA node has for containers, in bytes.
type NodeMemory struct {
	Node int             `json:"node"`
	Type v1.ResourceName `json:"type"`
	// Allocatable is what containers can have, Free what of it nobody has.
	Allocatable uint64 `json:"allocatable"`
	Free        uint64 `json:"free"`
	// Group are the nodes that it is given out together with, itself included, while it is.
	Group []int `json:"group,omitempty"`
}

// Nodewise returns what is left on each node, by node and type; nil with the policy None.
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
	if m.cfg.Journal != nil {
		m.cfg.Journal.Record(journal.Entry{
			Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
			Component: "memory", Container: container, Decision: decision, Why: why,
		})
	}
}
