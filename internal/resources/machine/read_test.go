package machine_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
)

func TestReadKnown(t *testing.T) {
	for name, shape := range machinetest.Known {
		t.Run(name, func(t *testing.T) {
			got, err := machine.Read(shape.Tree())
			if err != nil {
				t.Fatal(err)
			}
			if want := shape.Machine(); !reflect.DeepEqual(got, want) {
				t.Errorf("Read = %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestReadLiterally holds what is read against numbers that no shape has computed.
func TestReadLiterally(t *testing.T) {
	got, err := machine.Read(machinetest.Known["offline"].Tree())
	if err != nil {
		t.Fatal(err)
	}
	mem, cost := int64(64<<30), map[int]int{0: 10, 1: 32}
	want := machine.Machine{
		CPUs: []machine.CPU{
			{ID: 1, Core: 1},
			{ID: 2, Core: 2},
			{ID: 4, Core: 4, Cache: 1, Socket: 1, Node: 1},
			{ID: 5, Core: 5, Cache: 1, Socket: 1, Node: 1},
			{ID: 6, Core: 6, Cache: 1, Socket: 1, Node: 1},
			{ID: 7, Core: 7, Cache: 1, Socket: 1, Node: 1},
			{ID: 8, Core: 8},
			{ID: 9, Core: 1},
			{ID: 10, Core: 2},
			{ID: 13, Core: 5, Cache: 1, Socket: 1, Node: 1},
			{ID: 14, Core: 6, Cache: 1, Socket: 1, Node: 1},
		},
		Nodes: []machine.Node{
			{ID: 0, Memory: mem, Distances: cost},
			{ID: 1, Memory: mem, Distances: map[int]int{0: 32, 1: 10}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Read = %+v\nwant %+v", got, want)
	}
}

func TestReadCaches(t *testing.T) {
	type files = map[string]string
	const cpu = "sys/devices/system/cpu/"
	tests := []struct {
		name  string
		files files // "" removes the file
		want  []int
	}{
		{"ids of the kernel", nil, []int{0, 0, 7, 7}},
		{"one id is missing", files{cpu + "cpu2/cache/index3/id": ""}, []int{0, 0, 2, 2}},
		{"two caches have one id", files{cpu + "cpu2/cache/index3/id": "0"}, []int{0, 0, 2, 2}},
		{
			"two CPUs have none",
			files{cpu + "cpu2/cache/index3/level": "2", cpu + "cpu3/cache/index3/level": ""},
			[]int{0, 0, 1, 1}, // after all that are taken
		},
		{
			"none says who shares it",
			files{
				cpu + "cpu0/cache/index3/shared_cpu_list": "", cpu + "cpu1/cache/index3/shared_cpu_list": "",
				cpu + "cpu2/cache/index3/shared_cpu_list": "", cpu + "cpu3/cache/index3/shared_cpu_list": "",
			},
			[]int{0, 0, 0, 0},
		},
		{
			"a fourth level is not looked at",
			files{cpu + "cpu0/cache/index4/level": "4", cpu + "cpu0/cache/index4/shared_cpu_list": "0-3", cpu + "cpu0/cache/index4/id": "5"},
			[]int{0, 0, 7, 7},
		},
		{"a CPU that is offline shares it", files{cpu + "cpu0/cache/index3/shared_cpu_list": "0-1,9"}, []int{0, 0, 7, 7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := machinetest.Shape{Cores: 4, Caches: 2, CacheStep: 7}.Tree()
			change(tree, tt.files)
			m, err := machine.Read(tree)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, c := range m.CPUs {
				got = append(got, c.Cache)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("caches of the CPUs = %v, want %v", got, tt.want)
			}
		})
	}
}

func change(tree fstest.MapFS, files map[string]string) {
	for name, text := range files {
		delete(tree, name)
		if text != "" {
			tree[name] = &fstest.MapFile{Data: []byte(text + "\n")}
		}
	}
}

func TestReadRefuses(t *testing.T) {
	const cpu, node = "sys/devices/system/cpu/", "sys/devices/system/node/"
	tests := []struct{ file, text, want string }{
		{cpu + "online", "", "online: file does not exist"},
		{cpu + "online", "\n", "online: no CPU is online"},
		{cpu + "online", "0-x", `online: "0-x" is no list of numbers`},
		{cpu + "online", "3-1", `online: "3-1" is no list of numbers`},
		{cpu + "online", "-1", `online: "-1" is no list of numbers`},
		{cpu + "online", "0-4294967295", `online: "0-4294967295" has a number above 65535`},
		{cpu + "online", strings.Repeat("0,", 40000) + "0", "online: is longer than 65536 bytes"},
		{cpu + "online", "0-9", "node*/cpulist: CPU 8 is on none of the nodes"},
		{cpu + "cpu2/topology/core_cpus_list", "3", "cpu2/topology/core_cpus_list: CPU 2 is not among the threads of its own core"},
		{cpu + "cpu2/topology/core_cpus_list", "a", `cpu2/topology/core_cpus_list: "a" is no list of numbers`},
		{cpu + "cpu2/topology/physical_package_id", "first", `cpu2/topology/physical_package_id: "first" is no number`},
		{cpu + "cpu0/cache/index3/level", "?", `cpu0/cache/index3/level: "?" is no number`},
		{cpu + "cpu0/cache/index3/id", "?", `cpu0/cache/index3/id: "?" is no number`},
		{cpu + "cpu0/cache/index3/shared_cpu_list", "1", "cpu0/cache/index3/shared_cpu_list: CPU 0 is not among those that share its own cache"},
		{cpu + "cpu0/cache/index3/shared_cpu_list", "0-", `cpu0/cache/index3/shared_cpu_list: "0-" is no list of numbers`},
		{node + "online", "\n", "node/online: no NUMA node is online"},
		{node + "online", "0-x", `node/online: "0-x" is no list of numbers`},
		{node + "online", "0-2", "node0/distance: has 2 distances for 3 nodes"},
		{node + "node1/meminfo", "", "node1/meminfo: file does not exist"},
		{node + "node1/cpulist", "", "node1/cpulist: file does not exist"},
		{node + "node1/cpulist", "2-3,0,4-7", "node1/cpulist: CPU 0 is on node 0, too"},
		{node + "node1/cpulist", "2,6-7", "node*/cpulist: CPU 3 is on none of the nodes"},
		{node + "node1/meminfo", "Node 1 MemFree: 3 kB", "node1/meminfo: has no MemTotal"},
		{node + "node1/meminfo", "Node 1 MemTotal: much", `node1/meminfo: MemTotal "much" is no number of kB`},
		{node + "node1/meminfo", "Node 1 MemTotal: 9223372036854775807 kB", "is no number of kB"},
		{node + "node1/distance", "10", "node1/distance: has 1 distances for 2 nodes"},
		{node + "node1/distance", "10 near", `node1/distance: "near" is no number`},
		{node + "node1/hugepages/hugepages-2048kB/nr_hugepages", "", "nr_hugepages: file does not exist"},
		{node + "node1/hugepages/hugepages-2048kB/nr_hugepages", "all", `nr_hugepages: "all" is no number`},
		{node + "node1/hugepages/hugepages-bigkB/nr_hugepages", "1", `node1/hugepages: "hugepages-bigkB" names no size of a page`},
	}
	for _, tt := range tests {
		t.Run(strings.TrimPrefix(tt.file, "sys/devices/system/")+" "+tt.text[:min(len(tt.text), 20)], func(t *testing.T) {
			tree := machinetest.Shape{Sockets: 2, Cores: 2, Threads: 2, HugePages: map[int64]int64{2 << 20: 8}}.Tree()
			change(tree, map[string]string{tt.file: tt.text})
			m, err := machine.Read(tree)
			if err == nil {
				t.Fatalf("Read = %+v, want an error", m)
			}
			if !strings.HasSuffix(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "read the layout of the machine: ") {
				t.Errorf("Read: %v, want an error that ends in %q", err, tt.want)
			}
		})
	}
}

// TestReadOfflineThread reads a core that also names a thread that is offline.
func TestReadOfflineThread(t *testing.T) {
	tree := machinetest.Shape{Cores: 2, Threads: 2, Offline: []int{0}}.Tree()
	change(tree, map[string]string{"sys/devices/system/cpu/cpu2/topology/core_cpus_list": "0,2"})
	m, err := machine.Read(tree)
	if err != nil {
		t.Fatal(err)
	}
	if on := slices.DeleteFunc(slices.Clone(m.CPUs), func(c machine.CPU) bool { return c.Core != 2 }); len(on) != 1 || on[0].ID != 2 {
		t.Errorf("core 2 has the CPUs %+v, want 2 alone: %+v", on, m.CPUs)
	}
}

func TestReadNoNUMARefuses(t *testing.T) {
	tree := machinetest.Known["no NUMA"].Tree()
	delete(tree, "proc/meminfo")
	if _, err := machine.Read(tree); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "proc/meminfo") {
		t.Errorf("Read: %v, want that there is no proc/meminfo", err)
	}
}

// TestReadLeavesLinks takes all links away: sysfs has them, and nothing that is read needs them.
func TestReadLeavesLinks(t *testing.T) {
	shape := machinetest.Known["sub-NUMA"]
	tree := shape.Tree()
	before := len(tree)
	maps.DeleteFunc(tree, func(_ string, f *fstest.MapFile) bool { return f.Mode&fs.ModeSymlink != 0 })
	if len(tree) == before {
		t.Fatal("the tree has no links")
	}
	if m, err := machine.Read(tree); err != nil || !reflect.DeepEqual(m, shape.Machine()) {
		t.Errorf("Read without links = %v, %v", m, err)
	}
}

// TestReadHere reads the machine on which the test runs.
func TestReadHere(t *testing.T) {
	m, err := machine.Read(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(m)
	// Not all of them need to be allowed for this process.
	if len(m.CPUs) < runtime.NumCPU() {
		t.Errorf("%d CPUs are online, but the process may use %d", len(m.CPUs), runtime.NumCPU())
	}
	var memory int64
	for _, n := range m.Nodes {
		memory += n.Memory
	}
	if memory <= 0 {
		t.Errorf("the nodes have %d bytes of memory", memory)
	}
	for _, c := range m.CPUs {
		if !slices.ContainsFunc(m.Nodes, func(n machine.Node) bool { return n.ID == c.Node }) {
			t.Errorf("CPU %d is on node %d, which is none of %+v", c.ID, c.Node, m.Nodes)
		}
		if c.Core > c.ID || !m.Online().Contains(c.Core) {
			t.Errorf("CPU %d is of core %d, which is not the lowest of its threads", c.ID, c.Core)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	tree := machinetest.Known["huge"].Tree()
	for b.Loop() {
		if _, err := machine.Read(tree); err != nil {
			b.Fatal(err)
		}
	}
}
