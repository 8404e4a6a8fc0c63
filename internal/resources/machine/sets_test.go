package machine_test

import (
	"slices"
	"testing"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
)

func TestSets(t *testing.T) {
	// Two sockets of two nodes of two cores; siblings are 8 apart.
	m := machinetest.Shape{Sockets: 2, Nodes: 2, Caches: 1, Cores: 4, Threads: 2, NodeStep: 4, SocketStep: 2, CacheStep: 3}.Machine()
	tests := []struct {
		what string
		got  cpuset.CPUSet
		want string
	}{
		{"online", m.Online(), "0-15"},
		{"nodes 0 and 12", m.OnNodes(0, 12), "0-1,6-9,14-15"},
		{"no nodes", m.OnNodes(), ""},
		{"a node that is not there", m.OnNodes(1), ""},
		{"cache 3", m.OnCaches(3), "4-7,12-15"},
	}
	for _, tt := range tests {
		if got := tt.got.String(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
	ids := []struct {
		what      string
		got, want []int
	}{
		{"sockets", m.Sockets(), []int{0, 2}},
		{"nodes", m.CPUNodes(), []int{0, 4, 8, 12}},
		{"caches", m.Caches(), []int{0, 3}},
		{"cores", m.Cores(), []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"nodes of a machine with memory nodes", machinetest.Known["memory node"].Machine().CPUNodes(), []int{0, 1}},
	}
	for _, tt := range ids {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, tt.got, tt.want)
		}
	}
}

func TestThreadsPerCore(t *testing.T) {
	tests := map[string]int{"one CPU": 1, "laptop": 2, "POWER9": 4, "ARM": 1, "offline": 2, "no topology": 1}
	for name, want := range tests {
		if got := machinetest.Known[name].Machine().ThreadsPerCore(); got != want {
			t.Errorf("%s: ThreadsPerCore = %d, want %d", name, got, want)
		}
	}
	if got := (machine.Machine{}).ThreadsPerCore(); got != 0 {
		t.Errorf("a machine without CPUs has %d threads to a core", got)
	}
}

func TestString(t *testing.T) {
	tests := map[string]string{
		"one CPU":          "1 socket, 1 NUMA node, 1 core, 1 CPU",
		"EPYC NPS4":        "2 sockets, 8 NUMA nodes, 128 cores, 256 CPUs",
		"sockets in nodes": "4 sockets, 2 NUMA nodes, 12 cores, 24 CPUs",
		"memory node":      "2 sockets, 4 NUMA nodes (2 without CPUs), 8 cores, 16 CPUs",
		"offline":          "2 sockets, 2 NUMA nodes, 7 cores, 11 CPUs",
	}
	for name, want := range tests {
		if got := machinetest.Known[name].Machine().String(); got != want {
			t.Errorf("%s: String = %q, want %q", name, got, want)
		}
	}
}
