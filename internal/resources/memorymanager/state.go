package memorymanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// state is the content of the file memory_manager_state, in the kubelet's format.
type state struct {
	PolicyName   string      `json:"policyName"`
	MachineState nodeMap     `json:"machineState"`
	Entries      assignments `json:"entries,omitempty"`
	Checksum     uint64      `json:"checksum"`
}

func (s state) encode() ([]byte, error) {
	s.Checksum = s.sum()
	return json.Marshal(s)
}

// decode decodes a file of this package or of a kubelet. A checksum of 0 is not verified.
func decode(content []byte) (state, error) {
	s := state{MachineState: nodeMap{}, Entries: assignments{}}
	if err := json.Unmarshal(content, &s); err != nil {
		return state{}, err
	}
	if s.Checksum != 0 && s.Checksum != s.sum() {
		return state{}, errors.New("checkpoint is corrupted")
	}
	return s, nil
}

// sum returns the checksum: FNV-1a of the kubelet's struct in the format of
// k8s.io/utils/dump.ForHash.
func (s state) sum() uint64 { return hash(s.dump()) }

func hash(text string) uint64 {
	h := fnv.New32a()
	h.Write([]byte(text))
	return uint64(h.Sum32())
}

// dump returns the output of dump.ForHash for the kubelet's struct with these values. The names of
// the kubelet's types and fields are part of it.
func (s state) dump() string {
	return "(*state.MemoryManagerCheckpoint){PolicyName:(string)" + s.PolicyName +
		" MachineState:(state.NUMANodeMap)" + dumpMap(s.MachineState, strconv.Itoa, dumpNode) +
		" Entries:(state.ContainerMemoryAssignments)" + dumpMap(s.Entries, text, dumpContainers) +
		" Checksum:(checksum.Checksum)0}"
}

func dumpNode(n nodeState) string {
	return fmt.Sprintf("<*>{NumberOfAssignments:(int)%d MemoryMap:(map[v1.ResourceName]*state.MemoryTable)%s Cells:([]int)%v}",
		n.NumberOfAssignments, dumpMap(n.MemoryMap, text, dumpTable), n.Cells)
}

func dumpTable(t memoryTable) string {
	return fmt.Sprintf("<*>{TotalMemSize:(uint64)%d SystemReserved:(uint64)%d Allocatable:(uint64)%d Reserved:(uint64)%d Free:(uint64)%d}",
		t.Total, t.SystemReserved, t.Allocatable, t.Reserved, t.Free)
}

func dumpContainers(containers map[string][]Block) string {
	return dumpMap(containers, text, func(blocks []Block) string {
		var out []string
		for _, b := range blocks {
			out = append(out, fmt.Sprintf("{NUMAAffinity:([]int)%v Type:(v1.ResourceName)%s Size:(uint64)%d}", b.NUMAAffinity, b.Type, b.Size))
		}
		return "[" + strings.Join(out, " ") + "]"
	})
}

func text[K ~string](k K) string { return string(k) }

func dumpMap[K ~int | ~string, V any](m map[K]V, key func(K) string, value func(V) string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, key(k)+":"+value(m[k]))
	}
	return "map[" + strings.Join(out, " ") + "]"
}

// difference describes how the state of a file differs from the state derived from the machine, the
// configuration and the file's entries; "" if they are equal. Within a group only sums are
// compared, because the node of a block is undefined.
func difference(read, should nodeMap) string {
	for _, id := range slices.Sorted(maps.Keys(should)) {
		n, ok := read[id]
		if !ok {
			return fmt.Sprintf("NUMA node %d is new", id)
		}
		if !slices.Equal(slices.Sorted(slices.Values(n.Cells)), should[id].Cells) {
			return fmt.Sprintf("NUMA node %d is in group %v instead of %v", id, n.Cells, should[id].Cells)
		}
		if d := tableDifference(n.MemoryMap, should[id].MemoryMap); d != "" {
			return fmt.Sprintf("NUMA node %d: %s", id, d)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(read)) {
		if _, ok := should[id]; !ok {
			return fmt.Sprintf("NUMA node %d is gone", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(should)) {
		group := should[id].Cells
		for _, name := range slices.Sorted(maps.Keys(should[id].MemoryMap)) {
			if a, b := read.sums(group, name), should.sums(group, name); a != b {
				return fmt.Sprintf("NUMA nodes %v: %s is %d free and %d given, instead of %d and %d", group, name, a.Free, a.Reserved, b.Free, b.Reserved)
			}
		}
	}
	return ""
}

// tableDifference compares the fields that do not depend on allocations.
func tableDifference(read, should map[v1.ResourceName]memoryTable) string {
	for _, name := range slices.Sorted(maps.Keys(should)) {
		is, ok := read[name]
		if !ok {
			return fmt.Sprintf("%s is new", name)
		}
		for _, f := range []struct {
			what       string
			is, should uint64
		}{
			{"total", is.Total, should[name].Total},
			{"reserved for the system", is.SystemReserved, should[name].SystemReserved},
			{"allocatable", is.Allocatable, should[name].Allocatable},
		} {
			if f.is != f.should {
				return fmt.Sprintf("%s %s was %d and is %d", name, f.what, f.is, f.should)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		if _, ok := should[name]; !ok {
			return fmt.Sprintf("%s is gone", name)
		}
	}
	return ""
}

// sums returns the allocated and the free memory of one type on the nodes together.
func (m nodeMap) sums(nodes []int, name v1.ResourceName) memoryTable {
	var out memoryTable
	for _, id := range nodes {
		t := m[id].MemoryMap[name]
		out.Free += t.Free
		out.Reserved += t.Reserved
	}
	return out
}
