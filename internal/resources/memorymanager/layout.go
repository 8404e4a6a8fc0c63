package memorymanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/config"
	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

// layout returns the node map of a machine without allocations. reserved is the reservation of each
// node; its sum per type must equal unavailable. The errors are the kubelet's, or name the
// configuration field.
func layout(m *machine.Machine, reserved []config.MemoryReservation, unavailable v1.ResourceList) (nodeMap, error) {
	byNode, err := reservedOnNodes(m, reserved)
	if err != nil {
		return nil, err
	}
	if err := checkSums(reserved, unavailable); err != nil {
		return nil, err
	}
	out := nodeMap{}
	for _, n := range m.Nodes {
		state, err := emptyNode(n, byNode[n.ID])
		if err != nil {
			return nil, err
		}
		out[n.ID] = state
	}
	return out, nil
}

func reservedOnNodes(m *machine.Machine, reserved []config.MemoryReservation) (map[int]request, error) {
	out := map[int]request{}
	for _, n := range m.Nodes {
		if n.ID < 0 || n.ID >= topologymanager.MaxNodes {
			return nil, fmt.Errorf("NUMA node %d: memoryManagerPolicy %s can be used with nodes 0 to %d only: set it to %s", n.ID, Static, topologymanager.MaxNodes-1, None)
		}
		out[n.ID] = request{}
	}
	for i, r := range reserved {
		onNode, ok := out[int(r.NumaNode)]
		if !ok {
			return nil, fmt.Errorf("reservedMemory[%d]: the machine has no NUMA node %d", i, r.NumaNode)
		}
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			q := r.Limits[name]
			if !isMemory(name) || q.Sign() < 0 {
				return nil, fmt.Errorf("reservedMemory[%d].limits[%s]: %s is no amount of memory", i, name, q.String())
			}
			onNode[name] += uint64(q.Value())
		}
	}
	return out, nil
}

// checkSums checks that the reservations of all nodes add up to what is unavailable to pods
// (Kubernetes documentation, "Utilizing the NUMA-aware Memory Manager", reserved memory flag).
func checkSums(reserved []config.MemoryReservation, unavailable v1.ResourceList) error {
	sums := v1.ResourceList{}
	for name := range unavailable {
		if isMemory(name) {
			sums[name] = resource.Quantity{Format: resource.BinarySI}
		}
	}
	for _, r := range reserved {
		for name, q := range r.Limits {
			sum, ok := sums[name]
			if !ok {
				sum = resource.Quantity{Format: resource.BinarySI}
			}
			sum.Add(q)
			sums[name] = sum
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		is, should := sums[name], unavailable[name]
		if is.Cmp(should) != 0 {
			return fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature", is.String(), name, should.String())
		}
	}
	if total := sums[v1.ResourceMemory]; total.IsZero() {
		return errors.New("[memorymanager] you should specify the system reserved memory")
	}
	return nil
}

// emptyNode returns the state of a node without allocations. Hugepages are part of its total
// memory, but not allocatable as memory.
func emptyNode(n machine.Node, reserved request) (nodeState, error) {
	total := request{v1.ResourceMemory: uint64(n.Memory)}
	taken := uint64(0)
	for size, count := range n.HugePages {
		total[hugePages(size)] = uint64(size * count)
		taken += uint64(size * count)
	}
	for _, name := range slices.Sorted(maps.Keys(reserved)) {
		if _, ok := total[name]; !ok && reserved[name] > 0 {
			return nodeState{}, fmt.Errorf("reservedMemory: NUMA node %d has no %s", n.ID, name)
		}
	}
	out := nodeState{MemoryMap: map[v1.ResourceName]memoryTable{}, Cells: []int{n.ID}}
	for name, size := range total {
		t := memoryTable{Total: size, SystemReserved: reserved[name]}
		gone := t.SystemReserved
		if name == v1.ResourceMemory {
			gone += taken
		}
		if gone > size {
			return nodeState{}, fmt.Errorf("reservedMemory: NUMA node %d has %d bytes of %s, which is less than the %d that are kept or are huge pages", n.ID, size, name, gone)
		}
		t.Allocatable = size - gone
		t.Free = t.Allocatable
		out.MemoryMap[name] = t
	}
	return out, nil
}

// hugePages returns the resource name of hugepages of a size in bytes: "hugepages-2Mi".
func hugePages(size int64) v1.ResourceName {
	return v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}
