package containermanager_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"berth/internal/config"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/machine"
	"berth/internal/resources/memorymanager"
	"berth/internal/resources/topologymanager"
)

// newNode shares out two NUMA nodes of two CPUs and 4Gi each, of which CPU 0 and 1Gi of node 0 are
// reserved.
func newNode(t *testing.T, cpuPolicy, memoryPolicy string) *containermanager.ContainerManager {
	t.Helper()
	layout := &machine.Machine{Nodes: []machine.Node{{ID: 0, Memory: 4 << 30}, {ID: 1, Memory: 4 << 30}}}
	for id := range 4 {
		layout.CPUs = append(layout.CPUs, machine.CPU{ID: id, Core: id, Socket: id / 2, Cache: id / 2, Node: id / 2})
	}
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	j, reserved := journal.New(log), v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	devices, err := devicemanager.New(devicemanager.Config{Dir: dir, Nodes: 0b11, Changed: pod.NewInbox[pod.UID](), CapacityChanged: func() {}, Journal: j, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := cpumanager.New(cpumanager.Config{
		Policy: cpuPolicy, TopologyPolicy: topologymanager.BestEffort, Machine: layout, ReservedCPUs: cpuset.New(0), StateFile: filepath.Join(dir, "cpus"),
		Changed: pod.NewInbox[pod.UID](), Newest: func(pod.UID) (*pod.Status, bool) { return nil, false }, Runtime: noRuntime{}, Journal: j, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	memory, err := memorymanager.New(memorymanager.Config{
		Policy: memoryPolicy, Machine: layout, Reserved: []config.MemoryReservation{{NumaNode: 0, Limits: reserved}},
		NodeAllocatableReservation: reserved, StateFile: filepath.Join(dir, "memory"), Journal: j, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, load := range []func() error{devices.Load, cpus.Load, memory.Load} {
		if err := load(); err != nil {
			t.Fatal(err)
		}
	}
	topology, err := topologymanager.New(topologymanager.Config{
		Policy: topologymanager.BestEffort, Scope: topologymanager.ContainerScope, Machine: layout, Providers: []topologymanager.Provider{devices, cpus, memory},
		Note: func(*v1.Pod, string, string, string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return containermanager.New(containermanager.Config{Devices: devices, CPUs: cpus, Memory: memory, Topology: topology})
}

type noRuntime struct{ cpumanager.Runtime }

// guaranteed is a pod with a container that has CPUs and memory to itself.
func guaranteed(name, cpu, memory string) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, pod.UID("u-"+name)
	has := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	p.Spec.Containers = []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: has, Limits: has}}}
	return p
}

func TestSnapshot(t *testing.T) {
	m := newNode(t, cpumanager.Static, memorymanager.Static)
	big, small := guaranteed("big", "2", "3Gi"), &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	pods := []*v1.Pod{big, small}
	expect := func(when string, want containermanager.Snapshot) {
		t.Helper()
		if diff := cmp.Diff(want, m.Snapshot(pods)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	empty := containermanager.Snapshot{
		CPUs: &containermanager.CPUs{Reserved: "0", Shared: "0-3", Free: "1-3"},
		Memory: []memorymanager.NodeMemory{
			{Node: 0, Type: "memory", Allocatable: 3 << 30, Free: 3 << 30}, {Node: 1, Type: "memory", Allocatable: 4 << 30, Free: 4 << 30},
		},
	}
	expect("before anybody has anything", empty)
	for _, p := range pods {
		if err := m.Assign(p); err != nil {
			t.Fatal(err)
		}
	}
	given := containermanager.Holding{
		Namespace: "default", Pod: "big", UID: "u-big", Container: "main", CPUs: "2-3",
		Memory: []memorymanager.Block{{NUMAAffinity: []int{1}, Type: "memory", Size: 3 << 30}},
	}
	expect("when a pod has CPUs and memory", containermanager.Snapshot{
		CPUs: &containermanager.CPUs{Reserved: "0", Shared: "0-1", Free: "1"},
		Memory: []memorymanager.NodeMemory{
			{Node: 0, Type: "memory", Allocatable: 3 << 30, Free: 3 << 30}, {Node: 1, Type: "memory", Allocatable: 4 << 30, Free: 1 << 30},
		},
		Containers: []containermanager.Holding{given},
	})
	s := m.Snapshot(pods)
	if h, ok := s.Of("u-big", "main"); !ok || cmp.Diff(given, h) != "" {
		t.Errorf("of the container: %+v", h)
	}
	if h, ok := s.Of("u-big", "other"); ok {
		t.Errorf("of no container: %+v", h)
	}
	m.Release("u-big")
	expect("when it has ended", empty)

	m = newNode(t, cpumanager.None, memorymanager.None)
	if err := m.Assign(big); err != nil {
		t.Fatal(err)
	}
	expect("of a node that shares nothing out", containermanager.Snapshot{})
}
