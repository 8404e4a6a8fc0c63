package main

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"

	"berth/internal/host/preflight"
	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
)

const (
	oneNode = "topology policies change nothing here but for devices: there is one NUMA node"
	pairs   = "cpuManagerPolicyOptions full-pcpus-only gives CPUs in pairs, and refuses pods that ask for other numbers"
	align   = "cpuManagerPolicyOptions prefer-align-cpus-by-uncorecache keeps a container on as few of them as it can"
	stay    = "they are not assigned to containers; the policies use the CPUs that are online when the agent starts"
)

func TestCheckTopology(t *testing.T) {
	for name, want := range map[string][][3]string{ // name, found, consequence
		"one CPU": {
			{"machine", "1 socket, 1 NUMA node, 1 core, 1 CPU", oneNode},
			{"CPUs", "0", "cpuManagerPolicy static has nothing to give: the host keeps one CPU at least"},
			{"NUMA node 0", "CPUs 0; 64.0 GiB of memory"},
		},
		"two sockets": {
			{"machine", "2 sockets, 2 NUMA nodes, 12 cores, 24 CPUs"},
			{"CPUs", "0-23"},
			{"threads per core", "2", pairs},
			{"NUMA node 0", "CPUs 0,2,4,6,8,10,12,14,16,18,20,22; 64.0 GiB of memory; 512 huge pages of 2.0 MiB; distance 32 to node 1"},
			{"NUMA node 1", "CPUs 1,3,5,7,9,11,13,15,17,19,21,23; 64.0 GiB of memory; 512 huge pages of 2.0 MiB; distance 32 to node 0"},
		},
		"POWER9": {
			{"machine", "2 sockets, 2 NUMA nodes, 8 cores, 32 CPUs"},
			{"CPUs", "0-31"},
			{"threads per core", "4", strings.Replace(pairs, "in pairs", "in groups of 4", 1)},
			{"NUMA node 0", "CPUs 0-15; 64.0 GiB of memory; distance 32 to node 8"},
			{"NUMA node 8", "CPUs 16-31; 64.0 GiB of memory; distance 32 to node 0"},
		},
		"ARM": {
			{"machine", "1 socket, 1 NUMA node, 8 cores, 8 CPUs", oneNode},
			{"CPUs", "0-7"},
			{"NUMA node 0", "CPUs 0-7; 64.0 GiB of memory"},
			{"NUMA node 0 caches", "2 of the last level: CPUs 0-3 | 4-7", align},
		},
		"memory node": {
			{"machine", "2 sockets, 4 NUMA nodes (2 without CPUs), 8 cores, 16 CPUs"},
			{"CPUs", "0-15"},
			{"threads per core", "2", pairs},
			{"NUMA node 0", "CPUs 0-3,8-11; 64.0 GiB of memory; distance 24 to nodes 2-3, 32 to node 1"},
			{"NUMA node 1", "CPUs 4-7,12-15; 64.0 GiB of memory; distance 24 to nodes 2-3, 32 to node 0"},
			{"NUMA node 2", "no CPUs; 64.0 GiB of memory; distance 24 to nodes 0-1,3"},
			{"NUMA node 3", "no CPUs; 64.0 GiB of memory; distance 24 to nodes 0-2"},
		},
		"offline": {
			{"machine", "2 sockets, 2 NUMA nodes, 7 cores, 11 CPUs"},
			{"CPUs", "1-2,4-10,13-14"},
			{"threads per core", "2", pairs},
			{"CPUs offline", "0,3,11-12,15", stay},
			{"NUMA node 0", "CPUs 1-2,8-10; 64.0 GiB of memory; distance 32 to node 1"},
			{"NUMA node 1", "CPUs 4-7,13-14; 64.0 GiB of memory; distance 32 to node 0"},
		},
		"no NUMA": {
			{"machine", "2 sockets, 1 NUMA node, 4 cores, 8 CPUs", oneNode},
			{"CPUs", "0-7"},
			{"threads per core", "2", pairs},
			{"NUMA node 0", "CPUs 0-7; 128.0 GiB of memory; 16 huge pages of 2.0 MiB"},
			{"NUMA node 0 caches", "2 of the last level: CPUs 0-1,4-5 | 2-3,6-7", align},
		},
		"no distances": {
			{"machine", "2 sockets, 2 NUMA nodes, 4 cores, 4 CPUs"},
			{"CPUs", "0-3"},
			{"NUMA node 0", "CPUs 0-1; 64.0 GiB of memory"},
			{"NUMA node 1", "CPUs 2-3; 64.0 GiB of memory"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var checks []preflight.Check
			for _, w := range want {
				checks = append(checks, preflight.Check{Name: w[0], Result: preflight.OK, Found: w[1], Consequence: w[2]})
			}
			if diff := cmp.Diff(checks, checkTopology(machinetest.Known[name].Tree())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestTopologyOfManyNodes looks at what NUMA nodes alone are the reason for.
func TestTopologyOfManyNodes(t *testing.T) {
	for name, tt := range map[string]struct {
		m    machine.Machine
		want string
	}{
		"eight": {machinetest.Known["EPYC NPS4"].Machine(), ""},
		"sixteen": {
			machinetest.Known["EPYC L3 as NUMA"].Machine(),
			`a topologyManagerPolicy other than none needs topologyManagerPolicyOptions max-allowable-numa-nodes: "16" at least`,
		},
		"the last that a policy knows": {machinetest.Shape{Sockets: 2, NodeStep: 63}.Machine(), ""},
		"one beyond": {
			machinetest.Shape{Sockets: 2, NodeStep: 64}.Machine(),
			"topologyManagerPolicy must be none: others know the NUMA nodes 0 to 63 only",
		},
	} {
		if got := topologyChecks(tt.m, cpuset.New())[0].Consequence; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestCheckTopologyUnknown(t *testing.T) {
	const cpu = "sys/devices/system/cpu/"
	for name, tt := range map[string]struct {
		file, found, says string
		rows              int
	}{
		"no CPUs":            {cpu + "online", "it is not known how it lies", `online: "?" is no list of numbers`, 1},
		"only what is there": {cpu + "present", "not known", `present: "?" is no list of numbers`, 5},
	} {
		tree := machinetest.Known["laptop"].Tree()
		tree[tt.file] = &fstest.MapFile{Data: []byte("?")}
		checks := checkTopology(tree)
		last := checks[len(checks)-1]
		if len(checks) != tt.rows || last.Result != preflight.Warn || last.Found != tt.found || !strings.HasSuffix(last.Consequence, tt.says) {
			t.Errorf("%s: %+v", name, checks)
		}
	}
}
