package cpumanager

import (
	"testing"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
)

// takeCase takes n of all CPUs of a machine but those that are used, or of those in free if it is
// set.
type takeCase struct {
	machine    string
	used, free string
	n          int
	want       string
}

func (tt takeCase) run(t *testing.T, o TakeOptions) {
	t.Helper()
	shape, ok := machinetest.Known[tt.machine]
	if !ok {
		t.Fatalf("there is no machine %q", tt.machine)
	}
	m := shape.Machine()
	free := m.Online().Difference(parse(t, tt.used))
	if tt.free != "" {
		free = parse(t, tt.free)
	}
	got, err := takeCPUs(&m, free, tt.n, o)
	if err != nil {
		t.Errorf("%+v with %+v: %v", tt, o, err)
	} else if got.String() != tt.want {
		t.Errorf("%+v with %+v: %q", tt, o, got)
	}
}

func parse(t *testing.T, s string) cpuset.CPUSet {
	t.Helper()
	set, err := cpuset.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestTakePacked(t *testing.T) {
	for _, tt := range []takeCase{
		{machine: "one CPU", n: 1, want: "0"},
		{machine: "laptop", n: 0, want: ""},
		{machine: "laptop", n: -1, want: ""},
		{machine: "laptop", n: 1, want: "0"},
		{machine: "laptop", n: 2, want: "0,4"},
		{machine: "laptop", n: 3, want: "0-1,4"},
		{machine: "laptop", n: 8, want: "0-7"},
		// A piece of a core is used up before another is made.
		{machine: "laptop", used: "0", n: 1, want: "4"},
		{machine: "laptop", used: "0", n: 2, want: "1,5"},
		{machine: "laptop", used: "0", n: 3, want: "1,4-5"},
		// CPUs that the machine does not have are not free.
		{machine: "laptop", free: "3,7,8-20", n: 2, want: "3,7"},

		// A socket that is wholly free; else the socket with the fewest free CPUs.
		{machine: "virtual", n: 4, want: "0-3"},
		{machine: "virtual", used: "0", n: 4, want: "4-7"},
		{machine: "virtual", used: "0", n: 5, want: "1,4-7"},
		{machine: "virtual", used: "0", n: 2, want: "2-3"},
		{machine: "virtual", used: "0", n: 3, want: "1-3"},
		{machine: "two sockets", n: 4, want: "0,2,12,14"},
		{machine: "two sockets", n: 12, want: "0,2,4,6,8,10,12,14,16,18,20,22"},
		{machine: "two sockets", used: "0", n: 12, want: "1,3,5,7,9,11,13,15,17,19,21,23"},

		// Sockets have nodes in them.
		{machine: "sub-NUMA", n: 8, want: "0-3,16-19"},
		{machine: "sub-NUMA", n: 10, want: "0-4,16-20"},
		{machine: "sub-NUMA", n: 16, want: "0-7,16-23"},
		{machine: "sub-NUMA", used: "0", n: 8, want: "4-7,20-23"},
		{machine: "sub-NUMA", used: "0", n: 16, want: "8-15,24-31"},
		{machine: "sub-NUMA", used: "0,8", n: 16, want: "4-7,12-15,20-23,28-31"},
		// Nodes have sockets in them.
		{machine: "sockets in nodes", n: 6, want: "0-2,12-14"},
		{machine: "sockets in nodes", n: 12, want: "0-5,12-17"},
		{machine: "sockets in nodes", used: "0", n: 6, want: "3-5,15-17"},
		{machine: "sockets in nodes", used: "0", n: 12, want: "6-11,18-23"},

		{machine: "POWER9", n: 4, want: "0-3"},
		{machine: "POWER9", n: 6, want: "0-5"},
		{machine: "POWER9", n: 16, want: "0-15"},
		{machine: "POWER9", used: "0", n: 3, want: "1-3"},
		{machine: "POWER9", used: "0", n: 16, want: "16-31"},
		{machine: "memory node", used: "0-1", n: 8, want: "4-7,12-15"},
		{machine: "idle node", n: 3, want: "0-1,4"},
		{machine: "no NUMA", used: "0", n: 4, want: "2-3,6-7"},
		// A core of which a thread is offline is wholly free with the other.
		{machine: "offline", n: 1, want: "8"},
		{machine: "offline", n: 5, want: "1-2,8-10"},
		// The node of five comes before that of six, which would have been enough alone.
		{machine: "offline", n: 6, want: "1-2,4,8-10"},

		// Greed: cores are taken from the node with the fewest, though the other has all.
		{machine: "two sockets", free: "0,12,1,3,5,13,15,17", n: 4, want: "0-1,12-13"},
		{machine: "ARM server", free: "0,8-15", n: 4, want: "0,8-10"},
		// Whole cores come before pieces of them.
		{machine: "EPYC NPS1", used: "0-63", n: 2, want: "64,192"},
	} {
		tt.run(t, TakeOptions{})
	}
}

func TestTakeWholeCores(t *testing.T) {
	for _, tt := range []takeCase{
		{machine: "laptop", used: "0", n: 2, want: "1,5"},
		{machine: "laptop", used: "0-1", n: 4, want: "2-3,6-7"},
		// Of what has an odd number of CPUs all would leave half a core.
		{machine: "offline", n: 2, want: "1,9"},
		{machine: "offline", n: 6, want: "4-7,13-14"},
		{machine: "offline", n: 8, want: "1,4-7,9,13-14"},
		// Cores that have lost their other thread are taken last.
		{machine: "offline", free: "1,4-9,10,13-14", n: 8, want: "1,4-7,9,13-14"},
		{machine: "offline", free: "1,4-5,7-10,13", n: 6, want: "1,5,8-9,13,4"},
	} {
		tt.want = parse(t, tt.want).String()
		tt.run(t, TakeOptions{GroupSize: 2})
	}
}

func TestTakeAlignedByUncoreCache(t *testing.T) {
	for _, tt := range []takeCase{
		{machine: "small EPYC", n: 4, want: "0-1,8-9"},
		// Not 1-2,9-10, which are of two caches.
		{machine: "small EPYC", used: "0", n: 4, want: "2-3,10-11"},
		// The cache with the fewest that are enough.
		{machine: "small EPYC", used: "0", n: 3, want: "1,8-9"},
		{machine: "small EPYC", used: "0", n: 2, want: "1,9"},
		{machine: "small EPYC", used: "0,1,8", n: 2, want: "2,10"},
		// A whole one and a part.
		{machine: "small EPYC", used: "0", n: 6, want: "1-3,9-11"},
		{machine: "small EPYC", used: "0,4", n: 7, want: "1-3,8-11"},
		// None has so many: as without the option.
		{machine: "small EPYC", free: "0,2,4,8,10,12", n: 4, want: "0,4,8,12"},
		// One cache is both nodes of a socket: what is on one node comes first.
		{machine: "sub-NUMA", used: "0", n: 8, want: "4-7,20-23"},
		// Where no cache is told, it is the socket.
		{machine: "virtual", used: "0-1,4", n: 3, want: "5-7"},
		{machine: "EPYC NPS1", used: "0", n: 16, want: "8-15,136-143"},
		{machine: "EPYC NPS4", used: "0", n: 20, want: "1-2,8-15,129-130,136-143"},
	} {
		tt.run(t, TakeOptions{AlignByUncoreCache: true})
	}
	// With whole cores, a cache that has pieces of cores alone has no room.
	takeCase{machine: "small EPYC", used: "0-1", n: 2, want: "8-9"}.run(t, TakeOptions{AlignByUncoreCache: true})
	takeCase{machine: "small EPYC", used: "0-1", n: 2, want: "2,10"}.run(t, TakeOptions{AlignByUncoreCache: true, GroupSize: 2})
}

func TestTakeSpreadAcrossCores(t *testing.T) {
	for _, tt := range []takeCase{
		{machine: "laptop", n: 2, want: "0-1"},
		{machine: "laptop", n: 5, want: "0-4"},
		{machine: "laptop", used: "1", n: 4, want: "0,2-3,5"},
		// Sockets with the fewest free CPUs come first, and whole ones even before these.
		{machine: "two sockets", used: "1,3", n: 3, want: "5,7,9"},
		{machine: "two sockets", used: "1,3", n: 7, want: "5,7,9,11,13,15,17"},
		{machine: "virtual", n: 5, want: "0-4"},
		// Threads of one core have neighbouring numbers.
		{machine: "virtual", n: 2, want: "0,2"},
		{machine: "virtual", n: 3, want: "0-2"},
		{machine: "POWER9", n: 6, want: "0-1,4-5,8,12"},
	} {
		tt.run(t, TakeOptions{SpreadAcrossCores: true})
	}
}

func TestTakeSpreadAcrossNodes(t *testing.T) {
	for _, tt := range []takeCase{
		// One node is enough: the fullest.
		{machine: "sub-NUMA", n: 4, want: "0-1,16-17"},
		{machine: "sub-NUMA", n: 8, want: "0-3,16-19"},
		{machine: "sub-NUMA", used: "0-3", n: 4, want: "4-5,20-21"},
		{machine: "ARM server", free: "0,8-15", n: 4, want: "8-11"},
		// Two, equally.
		{machine: "sub-NUMA", n: 10, want: "0-2,4-6,16-17,20-21"},
		{machine: "sub-NUMA", used: "0", n: 10, want: "4-6,8-10,20-21,24-25"},
		// The rest from the fullest of them.
		{machine: "sub-NUMA", free: "0-2,16-18,4-7,20-22", n: 9, want: "0-1,4-5,7,16-17,20-21"},
		{machine: "sub-NUMA", free: "0-2,4-5,8-9,16-18,20,24", n: 11, want: "0-2,4-5,8-9,16-17,20,24"},
		// No nodes have equal shares: packed.
		{machine: "sub-NUMA", free: "0,16,4-7,20-23", n: 9, want: "0,4-7,20-23"},
	} {
		tt.run(t, TakeOptions{SpreadAcrossNodes: true})
	}
	for _, tt := range []takeCase{
		{machine: "sub-NUMA", n: 10, want: "0-2,4-5,16-18,20-21"},
		// Nodes 0 and 1 have each a free thread whose core is not free.
		{machine: "sub-NUMA", used: "0,4,8-15,24-31", n: 10, want: "1-3,5-6,17-19,21-22"},
		{machine: "sub-NUMA", used: "0,4,8-15,24-31", n: 7, want: "1-3,16-19"}, // no whole cores
	} {
		tt.run(t, TakeOptions{SpreadAcrossNodes: true, GroupSize: 2})
	}
}

func TestTakeTooMany(t *testing.T) {
	m := machinetest.Known["laptop"].Machine()
	const want = "not enough cpus available to satisfy request: requested=6, available=5"
	for _, o := range everyOption {
		got, err := takeCPUs(&m, cpuset.New(1, 2, 3, 6, 7, 8, 900), 6, o)
		if err == nil || err.Error() != want || !got.IsEmpty() {
			t.Errorf("with %+v: %q, %v, want the error %q", o, got, err, want)
		}
	}
	if _, err := takeCPUs(&machine.Machine{}, cpuset.New(0), 1, TakeOptions{}); err == nil {
		t.Error("a machine without CPUs gave one")
	}
}

// TestTakeNodesBeforeSockets has as many sockets as nodes, which are numbered the other way round:
// nodes are the larger ones.
func TestTakeNodesBeforeSockets(t *testing.T) {
	m := machine.Machine{CPUs: []machine.CPU{{ID: 0, Core: 0, Socket: 0, Node: 1}, {ID: 1, Core: 1, Socket: 1, Node: 0}}}
	for _, o := range everyOption {
		if got, err := takeCPUs(&m, m.Online(), 1, o); err != nil || got.String() != "1" {
			t.Errorf("with %+v: %q, %v, want 1", o, got, err)
		}
	}
}

// everyOption are the options that may be set together.
var everyOption = []TakeOptions{
	{},
	{GroupSize: 1},
	{GroupSize: 2},
	{AlignByUncoreCache: true},
	{AlignByUncoreCache: true, GroupSize: 2},
	{SpreadAcrossNodes: true},
	{SpreadAcrossNodes: true, GroupSize: 2},
	{SpreadAcrossCores: true},
}

func BenchmarkTake(b *testing.B) {
	m := machinetest.Known["huge"].Machine()
	free := m.Online().Difference(cpuset.New(0, 64, 130, 256, 300))
	for name, o := range map[string]TakeOptions{
		"packed": {}, "cores": {SpreadAcrossCores: true}, "nodes": {SpreadAcrossNodes: true, GroupSize: 2}, "caches": {AlignByUncoreCache: true},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := takeCPUs(&m, free, 222, o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
