package memorymanager

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"

	"berth/internal/config"
	"berth/internal/record/events/messagestest"
	"berth/internal/resources/machine"
)

// TestChecksumOfKubelet checks the checksums of files that kubelets wrote.
func TestChecksumOfKubelet(t *testing.T) {
	// A file of a kubelet with policy None, as its owner shows it.
	if _, err := decode([]byte(`{"policyName":"None","machineState":{},"checksum":4236770233}`)); err != nil {
		t.Error(err)
	}
	if got, err := (state{PolicyName: None, MachineState: nodeMap{}}).encode(); err != nil || string(got) != `{"policyName":"None","machineState":{},"checksum":4236770233}` {
		t.Errorf("%s, %v", got, err)
	}
	// The example of "Utilizing the NUMA-aware Memory Manager" in the Kubernetes documentation:
	// 150Gi on two nodes. It was written by the first version, whose type, field and policy had
	// other names (KEP-1769, "The Concept of Node Map and Memory Maps").
	node := func(kept, total, reserved, left uint64) nodeState {
		return nodeState{NumberOfAssignments: 1, Cells: []int{0, 1}, MemoryMap: map[v1.ResourceName]memoryTable{
			large:             {},
			v1.ResourceMemory: {Total: total, SystemReserved: kept, Allocatable: total - kept, Reserved: reserved, Free: left},
		}}
	}
	first, second := node(3221225472, 134987354112, 131766128640, 0), node(2252341248, 135286722560, 29295144960, 103739236352)
	given := assignments{"fa9bdd38-6df9-4cf9-aa67-8c4814da37a8": {"guaranteed": {{[]int{0, 1}, v1.ResourceMemory, 161061273600}}}}
	s := state{PolicyName: "static", MachineState: nodeMap{0: first, 1: second}, Entries: given}
	text := strings.NewReplacer("NUMANodeMap", "NodeMap", "Cells", "Nodes").Replace(s.dump())
	if got := hash(text); got != 4142013182 {
		t.Errorf("%d of %s", got, text)
	}
	// It is also what becomes of two empty nodes.
	empty := nodeMap{}
	for id, n := range s.MachineState {
		m := n.MemoryMap[v1.ResourceMemory]
		m.Free, m.Reserved = m.Allocatable, 0
		empty[id] = nodeState{Cells: []int{id}, MemoryMap: map[v1.ResourceName]memoryTable{large: {}, v1.ResourceMemory: m}}
	}
	filled, err := empty.fill(given)
	if d := difference(s.MachineState, filled); err != nil || d != "" || fmt.Sprint(filled) != fmt.Sprint(s.MachineState) {
		t.Errorf("%v, %s: %v", err, d, filled)
	}
}

// The types of the kubelet's file, under its names, for dump.ForHash.
type (
	MemoryManagerCheckpoint struct {
		PolicyName   string
		MachineState NUMANodeMap
		Entries      ContainerMemoryAssignments
		Checksum     Checksum
	}
	Checksum                   uint64
	NUMANodeMap                map[int]*NUMANodeState
	ContainerMemoryAssignments map[string]map[string][]hashedBlock
	NUMANodeState              struct {
		NumberOfAssignments int
		MemoryMap           map[v1.ResourceName]*MemoryTable
		Cells               []int
	}
	MemoryTable struct{ TotalMemSize, SystemReserved, Allocatable, Reserved, Free uint64 }
	hashedBlock struct {
		NUMAAffinity []int
		Type         v1.ResourceName
		Size         uint64
	}
)

func TestDumpIsThatOfTheLibrary(t *testing.T) {
	m := newManager(t, static(12, ""))
	for _, p := range []*v1.Pod{podOf("b", "init: memory=1Gi", "app: memory=10Gi hugepages-1Gi=1Gi", "other: memory=1Mi"), podOf("a", "app: memory=1Gi")} {
		if err := admit(m, p, hint("no")); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []state{{PolicyName: Static, MachineState: m.nodes, Entries: m.assigned}, {PolicyName: None, MachineState: nodeMap{}, Entries: assignments{}}} {
		c := &MemoryManagerCheckpoint{PolicyName: s.PolicyName, MachineState: NUMANodeMap{}, Entries: ContainerMemoryAssignments{}}
		for id, n := range s.MachineState {
			tables := map[v1.ResourceName]*MemoryTable{}
			for name, table := range n.MemoryMap {
				tables[name] = &MemoryTable{table.Total, table.SystemReserved, table.Allocatable, table.Reserved, table.Free}
			}
			c.MachineState[id] = &NUMANodeState{n.NumberOfAssignments, tables, n.Cells}
		}
		for uid, containers := range s.Entries {
			c.Entries[string(uid)] = map[string][]hashedBlock{}
			for name, blocks := range containers {
				for _, b := range blocks {
					c.Entries[string(uid)][name] = append(c.Entries[string(uid)][name], hashedBlock(b))
				}
			}
		}
		want := strings.NewReplacer("memorymanager.Checksum)", "checksum.Checksum)", "memorymanager.", "state.").Replace(dump.ForHash(c))
		if got := s.dump(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestFatal has files that no agent can go on from.
func TestFatal(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, static(2, file))
	if err := admit(m, podOf("a", "app: memory=2Gi"), hint("no")); err != nil {
		t.Fatal(err)
	}
	good := read(t, file)
	restore := func(why string) string {
		return fmt.Sprintf("could not restore state from checkpoint: %s, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet", why, file)
	}
	different := func(how string) string {
		return "[memorymanager] the expected machine state is different from the real one: " + how + "; drain this node and delete " + file
	}
	more := static(2, file)
	more.Reserved[0].Limits, more.NodeAllocatableReservation = list("memory=2Gi"), list("memory=2Gi")
	larger := static(2, file)
	larger.Machine.Nodes[1].Memory += gi
	paged := static(2, file)
	delete(paged.Machine.Nodes[0].HugePages, 2<<20)
	withPages := static(2, file)
	withPages.Machine.Nodes[0].HugePages[4<<20] = 0
	none := static(2, file)
	none.Policy = None
	entry := func(on []int, kind v1.ResourceName, size uint64) func(*state) {
		return func(s *state) { s.Entries = assignments{"a": {"app": {{on, kind, size}}}} }
	}
	for _, tt := range []struct {
		name   string
		cfg    Config
		change func(*state)
		want   string // "" is none
	}{
		{"as it was", static(2, file), nil, ""},
		{"no checksum", static(2, file), func(s *state) { s.Checksum = 0 }, ""},
		{"on the other node of a group", static(2, file), func(s *state) {
			entry([]int{0, 1}, v1.ResourceMemory, uint64(2*gi))(s)
			s.MachineState = nodeMap{0: onOf(s.MachineState[0], uint64(0)), 1: onOf(s.MachineState[1], uint64(2*gi))}
		}, ""},
		{"another policy", none, nil, restore(`configured policy "None" differs from state checkpoint policy "Static"`)},
		{"a wrong checksum", static(2, file), func(s *state) { s.Checksum = 1 }, restore("checkpoint is corrupted")},
		{"more reserved", more, nil, different("NUMA node 0: memory reserved for the system was 1073741824 and is 2147483648")},
		{"more memory", larger, nil, different("NUMA node 1: memory total was 10737418240 and is 11811160064")},
		{"a node more", static(3, file), nil, different("NUMA node 2 is new")},
		{"a node less", static(1, file), nil, different("NUMA node 1 is gone")},
		{"a size of pages more", withPages, nil, different("NUMA node 0: hugepages-4Mi is new")},
		{"a size of pages less", paged, nil, different("NUMA node 0: hugepages-2Mi is gone")},
		{"a container less", static(2, file), func(s *state) { s.Entries = nil }, different("NUMA nodes [0]: memory is 5368709120 free and 2147483648 given, instead of 7516192768 and 0")},
		{"in another group", static(2, file), entry([]int{0, 1}, v1.ResourceMemory, uint64(2*gi)), different("NUMA node 0 is in group [0] instead of [0 1]")},
		{"more than there is", static(2, file), entry([]int{0}, v1.ResourceMemory, uint64(9*gi)), different("pod a, container app: memory: 2147483648 bytes of 9663676416 are not free on NUMA nodes {0}")},
		{"on no node", static(2, file), entry([]int{7}, v1.ResourceMemory, 1), different("pod a, container app: memory on NUMA nodes [7]: the machine has {0,1}")},
		{"of no type", static(2, file), entry([]int{0}, "hugepages-8Mi", 1), different("pod a, container app: hugepages-8Mi: 1 bytes of 1 are not free on NUMA nodes {0}")},
		{"groups that overlap", static(2, file), func(s *state) {
			s.Entries = assignments{"a": {"app": {{[]int{0}, v1.ResourceMemory, 1}}, "more": {{[]int{0, 1}, v1.ResourceMemory, 1}}}}
		}, different("pod a, container more: [memorymanager] preferred hint violates NUMA node allocation")},
	} {
		s := state{PolicyName: good.PolicyName, MachineState: good.MachineState, Entries: good.Entries}
		if tt.change != nil {
			tt.change(&s)
		}
		if !strings.Contains(tt.name, "checksum") {
			s.Checksum = s.sum()
		}
		write(t, file, s)
		m, err := New(tt.cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = m.Load()
		messagestest.SawError(err)
		if (err != nil || tt.want != "") && fmt.Sprint(err) != tt.want {
			t.Errorf("%s: %v\nwant %s", tt.name, err, tt.want)
		}
	}
}

// onOf returns the state of a node of a group of two with as much given on it.
func onOf(n nodeState, given uint64) nodeState {
	table := n.MemoryMap[v1.ResourceMemory]
	table.Reserved, table.Free = given, table.Allocatable-given
	return nodeState{NumberOfAssignments: 1, Cells: []int{0, 1}, MemoryMap: map[v1.ResourceName]memoryTable{
		v1.ResourceMemory: table, large: n.MemoryMap[large], small: n.MemoryMap[small],
	}}
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t *testing.T, file string, s state) {
	t.Helper()
	text := fmt.Sprintf(`{"policyName":%q,"machineState":%s,"entries":%s,"checksum":%d}`, s.PolicyName, encoded(t, s.MachineState), encoded(t, s.Entries), s.Checksum)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadable(t *testing.T) {
	file := stateFile(t)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := New(static(1, file))
	if err != nil {
		t.Fatal(err)
	}
	want := `could not restore state from checkpoint: unexpected end of JSON input, please drain this node and delete the memory manager checkpoint file "` + file + `" before restarting Kubelet`
	err = m.Load()
	messagestest.SawError(err)
	if fmt.Sprint(err) != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// TestNonePolicyHasAFile checks that a change of the policy is found in both directions.
func TestNonePolicyHasAFile(t *testing.T) {
	file := stateFile(t)
	none := static(1, file)
	none.Policy = None
	newManager(t, none)
	newManager(t, none)
	if s := read(t, file); s.PolicyName != None || len(s.MachineState) != 0 {
		t.Errorf("%+v", s)
	}
	m, err := New(static(1, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(); err == nil || !strings.Contains(err.Error(), `configured policy "Static" differs from state checkpoint policy "None"`) {
		t.Error(err)
	}
}

func TestNewErrors(t *testing.T) {
	two := func(limits ...string) []config.MemoryReservation {
		var out []config.MemoryReservation
		for i, l := range limits {
			out = append(out, config.MemoryReservation{NumaNode: int32(i), Limits: list(l)})
		}
		return out
	}
	for _, tt := range []struct {
		name        string
		reserved    []config.MemoryReservation
		unavailable string
		want        string // "" is none
	}{
		{"split", two("memory=1Gi", "memory=2Gi"), "memory=3Gi cpu=2 ephemeral-storage=1Gi", ""},
		{"pages", two("memory=1Gi hugepages-1Gi=1Gi", "hugepages-1Gi=1Gi"), "memory=1024Mi hugepages-1Gi=2Gi", ""},
		{"twice on one node", slices.Concat(two("memory=1Gi"), two("memory=1Gi")), "memory=2Gi", ""},
		{"too little", two("memory=1Gi", "memory=2Gi"), "memory=3172Mi", `the total amount "3Gi" of type "memory" is not equal to the value "3172Mi" determined by Node Allocatable feature`},
		{"nothing", nil, "memory=100Mi", `the total amount "0" of type "memory" is not equal to the value "100Mi" determined by Node Allocatable feature`},
		{"pages that nobody reserves", two("memory=1Gi hugepages-2Mi=10Mi"), "memory=1Gi", `the total amount "10Mi" of type "hugepages-2Mi" is not equal to the value "0" determined by Node Allocatable feature`},
		{"nothing at all", nil, "cpu=1", "[memorymanager] you should specify the system reserved memory"},
		{"pages alone", two("hugepages-1Gi=1Gi"), "hugepages-1Gi=1Gi", "[memorymanager] you should specify the system reserved memory"},
		{"unknown node", two("memory=1Gi", "memory=1Gi", "memory=1Gi"), "memory=3Gi", "reservedMemory[2]: the machine has no NUMA node 2"},
		{"no memory", two("cpu=1"), "memory=1Gi", "reservedMemory[0].limits[cpu]: 1 is no amount of memory"},
		{"less than nothing", two("memory=-1"), "memory=-1", "reservedMemory[0].limits[memory]: -1 is no amount of memory"},
		{"unknown pages", two("memory=1Gi hugepages-64Ki=64Ki"), "memory=1Gi hugepages-64Ki=64Ki", "reservedMemory: NUMA node 0 has no hugepages-64Ki"},
		{"more than there is", two("memory=9Gi"), "memory=9Gi", "reservedMemory: NUMA node 0 has 10737418240 bytes of memory, which is less than the 11811160064 that are kept or are huge pages"},
	} {
		cfg := static(2, "")
		cfg.Reserved, cfg.NodeAllocatableReservation = tt.reserved, list(tt.unavailable)
		_, err := New(cfg)
		messagestest.SawError(err)
		if (err != nil || tt.want != "") && fmt.Sprint(err) != tt.want {
			t.Errorf("%s: %v\nwant %s", tt.name, err, tt.want)
		}
	}
	if _, err := New(Config{Policy: "BestEffort"}); fmt.Sprint(err) != `memoryManagerPolicy: unknown policy "BestEffort": set None or Static` {
		t.Error(err)
	}
	cfg := static(1, "")
	cfg.Machine = &machine.Machine{Nodes: []machine.Node{{ID: 64, Memory: gi}}}
	if _, err := New(cfg); fmt.Sprint(err) != "NUMA node 64: memoryManagerPolicy Static can be used with nodes 0 to 63 only: set it to None" {
		t.Error(err)
	}
}
