//go:build e2e && vm

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"berth/internal/host/cgroups"
)

// numa is for a machine of two NUMA nodes, each of two cores with two threads. It leaves the first
// core to the host.
const numa = `cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
cpuManagerReconcilePeriod: 24h
reservedSystemCPUs: 0-1
memoryManagerPolicy: Static
kubeReserved: {memory: 64Mi}
systemReserved: {memory: 92Mi}
evictionHard: {memory.available: 100Mi}
reservedMemory:
- {numaNode: 0, limits: {memory: 192Mi}}
- {numaNode: 1, limits: {memory: 64Mi}}
topologyManagerPolicy: `

// needsNodes fails the test on a machine with other CPUs and NUMA nodes than it is for.
func needsNodes(t *testing.T) {
	t.Helper()
	needsUnified(t)
	for file, want := range map[string]string{
		"node/online": "0-1", "node/node0/cpulist": "0-3", "node/node1/cpulist": "4-7",
		"cpu/cpu2/topology/thread_siblings_list": "2-3", "cpu/cpu5/topology/thread_siblings_list": "4-5",
	} {
		wantFile(t, "/sys/devices/system/"+file, want)
	}
	if t.Failed() {
		t.Fatal("this host has other CPUs: run this test by BERTH_VM_NUMA=1 make e2e-vm")
	}
}

// wantNobodyElse checks that no cgroup of pods but those of the owners' containers names one of
// their CPUs, be there a process in it or not.
func (n *node) wantNobodyElse(now pods, owned map[string]string) {
	n.t.Helper()
	looked := 0
	for _, dir := range n.place.cgroupTree() {
		b, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
		if err != nil || !strings.Contains(dir, "kubepods") {
			continue
		}
		looked++
		cpus, err := cpuset.Parse(strings.TrimSpace(string(b)))
		must(n.t, err)
		for pod, list := range owned {
			mine, err := cpuset.Parse(list)
			must(n.t, err)
			id := containerID(now.named(pod), "main")
			if !mine.Intersection(cpus).IsEmpty() && (id == "" || !strings.Contains(filepath.Base(dir), id)) {
				n.t.Errorf("%s has CPUs %s, of which %s are the pod %s's", dir, cpus, mine, pod)
			}
		}
	}
	if looked <= len(owned) {
		n.t.Errorf("only %d cgroups of pods say on which CPUs they run", looked)
	}
}

// Whole cores and the memory of one NUMA node: both nodes are filled, nobody else uses what a
// Guaranteed pod has, and what does not lie together is refused. Where two nodes are needed, both
// are given.
func TestNUMA(t *testing.T) {
	needsNodes(t)
	n := newNode(t)
	now := pods{}
	cpus := map[string]string{}
	check := func() {
		t.Helper()
		n.awaitCPUs(now, cpus)
		owned := maps.Clone(cpus)
		delete(owned, "rest-n1")
		n.wantNobodyElse(now, owned)
	}
	put := func(name, cpu, memory string) {
		t.Helper()
		n.put(n.act(name, v1.RestartPolicyAlways, nil, bounded(actor("main", places+"stay"), "", cpu+" "+memory)))
	}
	runs := func(name, on, shared, nodes string) {
		t.Helper()
		name1 := name + "-n1"
		cpus[name1], cpus["rest-n1"] = on, shared
		now = n.awaitReady(slices.Collect(maps.Keys(cpus))...)
		n.awaitStory(name, fmt.Sprintf("main run 1 on CPUs %s with memory of %s", on, nodes))
		check()
	}
	refused := func(name, cpu, reason, message string) {
		t.Helper()
		put(name, cpu, "32Mi")
		p := n.await(name+" to be refused", func(p pods) bool { return p.inPhase(name+"-n1", v1.PodFailed) }).named(name + "-n1")
		if p.Status.Reason != reason || p.Status.Message != "Pod was rejected: "+message {
			t.Errorf("%s is refused for %s: %s; want %s: %s", name, p.Status.Reason, p.Status.Message, reason, message)
		}
		n.remove(name + ".yaml")
		n.awaitGone(p.UID)
	}
	ends := func(name, shared string) {
		t.Helper()
		p := now.named(name + "-n1")
		n.remove(name + ".yaml")
		n.awaitGone(p.UID)
		delete(cpus, p.Name)
		cpus["rest-n1"] = shared
		now = n.awaitReady(slices.Collect(maps.Keys(cpus))...)
		check()
	}

	rest := actor("main", places+"stay")
	rest.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Mi")}
	n.put(n.act("rest", v1.RestartPolicyAlways, nil, rest))
	a := n.startConfigured(numa + "single-numa-node\n")
	cpus["rest-n1"] = "0-7"
	now = n.awaitReady("rest-n1")
	check()
	put("first", "2", "64Mi")
	runs("first", "2-3", "0-1,4-7", "0")
	n.wantNoQuota(now.named("first-n1"))
	put("second", "2", "64Mi")
	runs("second", "4-5", "0-1,6-7", "1")
	refused("half", "1", "SMTAlignmentError", "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2")
	ends("first", "0-3,6-7")
	refused("split", "4", "TopologyAffinityError", "Resources cannot be allocated with Topology locality")
	n.put(n.act("third", v1.RestartPolicyAlways, []v1.Container{bounded(actor("setup", places), "", "2 32Mi")}, bounded(actor("main", places+"stay"), "", "2 64Mi")))
	runs("third", "2-3", "0-1,6-7", "0")
	n.awaitStory("third", "setup run 1 on CPUs 2-3 with memory of 0")
	put("fourth", "2", "64Mi")
	runs("fourth", "6-7", "0-1", "1")
	if testDriver() == cgroups.Systemd {
		systemctl(t, "daemon-reload") // what systemd believes is what is written
		check()
	}

	a.kill()
	check()
	n.startConfigured(numa + "restricted\n")
	now = n.awaitReady(slices.Collect(maps.Keys(cpus))...)
	check()
	for _, p := range now {
		if c := container(p, "main"); c.RestartCount != 0 {
			t.Errorf("the container of %s was restarted %d times by agents that came and went", p.Name, c.RestartCount)
		}
	}
	ends("second", "0-1,4-5")
	ends("third", "0-5")
	ends("fourth", "0-7")
	refused("spread", "6", "TopologyAffinityError", "Resources cannot be allocated with Topology locality") // its memory fits on one node
	put("wide", "6", "1600Mi")
	runs("wide", "2-7", "0-1", "0-1")
}
