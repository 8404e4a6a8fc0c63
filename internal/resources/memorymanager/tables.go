package memorymanager

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// Block is memory of one type that is allocated to a container.
type Block struct {
	// NUMAAffinity are its NUMA nodes, ascending.
	NUMAAffinity []int `json:"numaAffinity"`
	// Type is memory or hugepages-<size>.
	Type v1.ResourceName `json:"type"`
	// Size is in bytes.
	Size uint64 `json:"size"`
}

func (b Block) nodes() topologymanager.Nodes { return topologymanager.NodesOf(b.NUMAAffinity...) }

// assignments are the blocks by pod UID and container name. They are immutable: changes return a
// new value.
type assignments map[pod.UID]map[string][]Block

// with returns the assignments with the pod's blocks replaced; an empty map removes the pod.
func (a assignments) with(uid pod.UID, containers map[string][]Block) assignments {
	out := maps.Clone(a)
	if out == nil {
		out = assignments{}
	}
	if len(containers) == 0 {
		delete(out, uid)
	} else {
		out[uid] = containers
	}
	return out
}

// memoryTable is the memory of one type on a NUMA node, in bytes (KEP-1769, "Memory Map").
type memoryTable struct {
	// Allocatable is the part of Total that containers can have. Reserved is the allocated part of
	// it, Free the rest. SystemReserved is withheld from pods.
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// nodeState is the state of a NUMA node.
type nodeState struct {
	// NumberOfAssignments is the number of blocks on the node.
	NumberOfAssignments int                             `json:"numberOfAssignments"`
	MemoryMap           map[v1.ResourceName]memoryTable `json:"memoryMap"`
	// Cells is the group of the node, ascending: the nodes that it is allocated together with,
	// including itself.
	Cells []int `json:"cells"`
}

// nodeMap is the state of all NUMA nodes, by ID. It is immutable after construction.
type nodeMap map[int]nodeState

// all returns the nodes of the machine.
func (m nodeMap) all() topologymanager.Nodes {
	return topologymanager.NodesOf(slices.Collect(maps.Keys(m))...)
}

// group returns the group of a node.
func (m nodeMap) group(id int) topologymanager.Nodes { return topologymanager.NodesOf(m[id].Cells...) }

// errOtherGroup means that a block would overlap a group partially. The node of a block within a
// group is undefined.
var errOtherGroup = errors.New("[memorymanager] preferred hint violates NUMA node allocation")

// fill returns the map after all assignments; m must have none. The order of assignments does not
// matter, because only sums of a group count.
func (m nodeMap) fill(a assignments) (nodeMap, error) {
	out := nodeMap{}
	for id, n := range m {
		n.MemoryMap = maps.Clone(n.MemoryMap)
		out[id] = n
	}
	for _, uid := range slices.Sorted(maps.Keys(a)) {
		for _, container := range slices.Sorted(maps.Keys(a[uid])) {
			for _, b := range a[uid][container] {
				if err := out.add(b); err != nil {
					return nil, fmt.Errorf("pod %s, container %s: %w", uid, container, err)
				}
			}
		}
	}
	return out, nil
}

// add allocates a block in place, from its lowest node first.
func (m nodeMap) add(b Block) error {
	on := b.nodes()
	if on == 0 || !m.all().Contains(on) {
		return fmt.Errorf("%s on NUMA nodes %v: the machine has %s", b.Type, b.NUMAAffinity, m.all())
	}
	if !m.allows(on) {
		return errOtherGroup
	}
	left := b.Size
	for _, id := range on.List() {
		n := m[id]
		n.NumberOfAssignments++
		n.Cells = on.List()
		if t, ok := n.MemoryMap[b.Type]; ok {
			take := min(left, t.Free)
			t.Free -= take
			t.Reserved += take
			left -= take
			n.MemoryMap[b.Type] = t
		}
		m[id] = n
	}
	if left > 0 {
		return fmt.Errorf("%s: %d bytes of %d are not free on NUMA nodes %s", b.Type, left, b.Size, on)
	}
	return nil
}

// allows reports whether a block can be allocated on the nodes together: each node in use must be
// in a group of exactly these nodes, so that groups stay disjoint (KEP-1769, "How to enable the
// guaranteed memory allocation over many NUMA nodes?").
func (m nodeMap) allows(on topologymanager.Nodes) bool {
	for _, id := range on.List() {
		if m[id].NumberOfAssignments > 0 && m.group(id) != on {
			return false
		}
	}
	return true
}

// request is the requested amount of each type of memory, in bytes. Amounts are not 0.
type request map[v1.ResourceName]uint64

// reuse is what a container can reuse of exited init containers' allocations, by their nodes.
type reuse map[topologymanager.Nodes]request

// covers reports whether the nodes have enough of each type; amount selects the field to sum.
func (m nodeMap) covers(on topologymanager.Nodes, want, again request, amount func(memoryTable) uint64) bool {
	for name, size := range want {
		sum := again[name]
		for _, id := range on.List() {
			sum += amount(m[id].MemoryMap[name])
		}
		if sum < size {
			return false
		}
	}
	return true
}

func allocatable(t memoryTable) uint64 { return t.Allocatable }
func free(t memoryTable) uint64        { return t.Free }

// enough reports whether the free and reusable memory on the nodes suffices.
func (m nodeMap) enough(on topologymanager.Nodes, want request, again reuse) bool {
	return m.covers(on, want, again[on], free)
}

// places yields the hints for the request, narrower ones first, so that the first is the best. A
// hint is preferred if fewer nodes would not suffice even without allocations.
func (m nodeMap) places(want request, again reuse) iter.Seq[topologymanager.Hint] {
	return func(yield func(topologymanager.Hint) bool) {
		least := m.least(want)
		if least == 0 {
			return
		}
		for on := range m.candidates(want, least) {
			if m.enough(on, want, again) && !yield(topologymanager.Hint{Nodes: on, Preferred: on.Count() == least}) {
				return
			}
		}
	}
}

// least returns the number of nodes that the request needs without allocations; 0 if the machine is
// too small.
func (m nodeMap) least(want request) int {
	if !m.covers(m.all(), want, nil, allocatable) {
		return 0
	}
	// A lower bound: that many of the largest nodes suffice for each type on its own. It saves the
	// search through smaller sets, which takes long on machines with many nodes.
	size := 1
	for name := range want {
		var amounts []uint64
		for _, n := range m {
			amounts = append(amounts, n.MemoryMap[name].Allocatable)
		}
		slices.Sort(amounts)
		sum, count := uint64(0), 0
		for _, amount := range slices.Backward(amounts) {
			if sum < want[name] {
				sum += amount
				count++
			}
		}
		size = max(size, count)
	}
	for on := range m.all().SubsetsFrom(size) {
		if m.covers(on, want, nil, allocatable) {
			return on.Count()
		}
	}
	return 0
}

// candidates yields the sets of nodes that can be allocated together, narrower ones first: groups,
// and subsets of the unused nodes with at least least nodes, if the unused nodes can satisfy the
// request.
func (m nodeMap) candidates(want request, least int) iter.Seq[topologymanager.Nodes] {
	var unused topologymanager.Nodes
	var groups []topologymanager.Nodes
	for id, n := range m {
		if n.NumberOfAssignments == 0 {
			unused |= topologymanager.NodesOf(id)
		} else {
			groups = append(groups, m.group(id))
		}
	}
	if !m.covers(unused, want, nil, free) {
		unused = 0
	}
	slices.SortFunc(groups, func(a, b topologymanager.Nodes) int {
		return cmp.Or(cmp.Compare(a.Count(), b.Count()), cmp.Compare(a, b))
	})
	groups = slices.Compact(groups)
	return func(yield func(topologymanager.Nodes) bool) {
		rest := groups
		for on := range unused.SubsetsFrom(least) {
			for ; len(rest) > 0 && rest[0].Narrower(on); rest = rest[1:] {
				if !yield(rest[0]) {
					return
				}
			}
			if !yield(on) {
				return
			}
		}
		for _, on := range rest {
			if !yield(on) {
				return
			}
		}
	}
}

// best returns the best hint that contains the nodes, if there is one.
func (m nodeMap) best(want request, again reuse, near topologymanager.Nodes) (topologymanager.Hint, bool) {
	for h := range m.places(want, again) {
		if h.Nodes.Contains(near) {
			return h, true
		}
	}
	return topologymanager.Hint{}, false
}

// Errors of an allocation.
var (
	errNoNodes           = errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
	errNotPreferred      = errors.New("[memorymanager] failed to find the default preferred hint")
	errExtendedPreferred = errors.New("[memorymanager] failed to find the extended preferred hint")
)

// place returns the nodes for the request: those of the hint if they suffice, or else the best ones
// that contain them.
func (m nodeMap) place(want request, again reuse, near topologymanager.Hint) (topologymanager.Nodes, error) {
	chosen, wanted := near, errNotPreferred
	if near.Nodes == 0 || !m.enough(near.Nodes, want, again) {
		if near.Nodes != 0 {
			wanted = errExtendedPreferred
		}
		h, found := m.best(want, again, near.Nodes)
		switch {
		case !found:
			return 0, errNoNodes
		case near.Preferred && !h.Preferred:
			return 0, wanted
		}
		chosen = h
	}
	if !m.allows(chosen.Nodes) {
		return 0, errOtherGroup
	}
	return chosen.Nodes, nil
}
