package containermanager_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/memorymanager"
	"berth/internal/resources/topologymanager"
)

// check makes sure of all that always holds.
func (k *walk) check() {
	for uid, l := range k.pods {
		for c := range pod.Containers(&l.Spec) {
			got, want := has(k.ContainerManager, uid, c.Name), l.has[c.Name]
			if isInit(l.Pod, c.Name) { // its memory goes to those after it
				got, want = withoutMemory(got), withoutMemory(want)
			}
			if got != want {
				k.t.Errorf("%s/%s has %q, and had %q", uid, c.Name, got, want)
			}
		}
	}
	k.checkClaims()
	k.checkDevices()
	k.checkCPUs()
	k.checkMemory()
	if k.mend == nil && !k.behind {
		k.checkFiles()
	}
}

func withoutMemory(text string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(text), func(s string) bool {
		return strings.HasPrefix(s, "memory=") || strings.HasPrefix(s, "hugepages-")
	}), " ")
}

// owners are who has the single things of a kind.
type owners map[string]string

// add fails if somebody has the thing who is not the owner, or is another container that runs at
// the same time.
func (k *walk) add(to owners, thing string, l *life, container string) {
	who := string(l.UID)
	if before, ok := to[thing]; ok && before != who {
		k.t.Errorf("%s is given to %s and to %s", thing, before, who)
	}
	to[thing] = who
	if beside := thing + " of " + who; !isInit(l.Pod, container) {
		if before, ok := to[beside]; ok {
			k.t.Errorf("%s is given to %s and to %s beside it", beside, before, container)
		}
		to[beside] = container
	}
}

func (k *walk) checkDevices() {
	given := owners{}
	things := map[string]bool{}
	for _, l := range k.pods {
		for c := range pod.Containers(&l.Spec) {
			for _, d := range k.Devices.Devices(l.UID, c.Name) {
				k.add(given, string(d.Resource)+"="+d.ID, l, c.Name)
				things[string(d.Resource)+"="+d.ID] = true
			}
		}
	}
	n := int64(0)
	for _, count := range k.Devices.Allocated() {
		n += count
	}
	if n != int64(len(things)) {
		k.t.Errorf("%d devices are given, of %d that pods have", n, len(things))
	}
}

// shared returns the CPUs that are shared.
func (k *walk) shared() cpuset.CPUSet {
	shared, err := cpuset.Parse(k.CPUs.CPUs("nobody", "c"))
	k.must(err)
	return shared
}

func (k *walk) checkCPUs() {
	if k.cpu.Policy == cpumanager.None {
		return
	}
	given, all, shared := owners{}, cpuset.New(), k.shared()
	want := map[pod.ContainerID]string{}
	for _, l := range k.pods {
		for c := range pod.Containers(&l.Spec) {
			cpus := k.CPUs.Exclusive(l.UID, c.Name)
			for _, cpu := range cpus.List() {
				k.add(given, fmt.Sprintf("CPU %d", cpu), l, c.Name)
			}
			all = all.Union(cpus)
			id := pod.ContainerID(string(l.UID) + "/" + c.Name)
			if want[id] = cpus.String(); cpus.IsEmpty() {
				want[id] = shared.String()
			}
		}
	}
	if both := all.Intersection(shared); !both.IsEmpty() {
		k.t.Errorf("CPUs %s are shared and given", both)
	}
	online := cpuset.New()
	for _, c := range k.machine.CPUs {
		online = online.Union(cpuset.New(c.ID))
	}
	reserved := online.Difference(k.CPUs.Allocatable())
	if left := online.Difference(all).Difference(shared); !left.IsSubsetOf(reserved) || k.cpu.Options["strict-cpu-reservation"] != "true" && !left.IsEmpty() {
		k.t.Errorf("CPUs %s are lost", left)
	}
	if both := all.Intersection(reserved); !both.IsEmpty() {
		k.t.Errorf("CPUs %s are reserved and given", both)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, c := range k.runs {
		if c.cpus != want[id] {
			k.t.Errorf("container %s runs on %s; want %s", id, c.cpus, want[id])
		}
	}
}

func (k *walk) checkMemory() {
	given, room := map[string]uint64{}, map[string]uint64{}
	groups := map[int]string{}
	for _, b := range k.Memory.Allocatable() {
		room[fmt.Sprint(b.Type, b.NUMAAffinity)] = b.Size
	}
	limit := map[string]uint64{}
	for _, l := range k.pods {
		for c := range pod.Containers(&l.Spec) {
			for _, b := range k.Memory.Memory(l.UID, c.Name) {
				group := fmt.Sprint(b.NUMAAffinity)
				key := fmt.Sprint(b.Type, b.NUMAAffinity)
				given[key] += b.Size
				limit[key] = 0
				for _, n := range b.NUMAAffinity {
					limit[key] += room[fmt.Sprint(b.Type, []int{n})]
					if before, ok := groups[n]; ok && before != group {
						k.t.Errorf("node %d belongs to the groups %s and %s", n, before, group)
					}
					groups[n] = group
				}
			}
		}
	}
	for key, size := range given {
		if size > limit[key] {
			k.t.Errorf("%d bytes of %s are given, of %d", size, key, limit[key])
		}
	}
	k.checkSums(given)
}

// checkSums makes sure that what the file says of the machine adds up.
func (k *walk) checkSums(given map[string]uint64) {
	if k.memory.Policy != memorymanager.Static || k.behind || k.mend != nil {
		return
	}
	content, err := os.ReadFile(k.memory.StateFile)
	k.must(err)
	var file struct {
		MachineState map[int]struct {
			MemoryMap map[string]struct{ Allocatable, Reserved, Free uint64 } `json:"memoryMap"`
		} `json:"machineState"`
	}
	k.must(json.Unmarshal(content, &file))
	reserved, sum := uint64(0), uint64(0)
	for _, n := range file.MachineState {
		for name, t := range n.MemoryMap {
			if t.Reserved+t.Free != t.Allocatable {
				k.t.Errorf("%s: %d reserved and %d free are not %d", name, t.Reserved, t.Free, t.Allocatable)
			}
			reserved += t.Reserved
		}
	}
	for _, size := range given {
		sum += size
	}
	if reserved != sum {
		k.t.Errorf("%d bytes are reserved, of %d that pods have", reserved, sum)
	}
}

// checkFiles makes sure that the next agent would know what this one knows.
func (k *walk) checkFiles() {
	changed := k.cpu.Changed
	next := k.build()
	k.cpu.Changed = changed
	for uid, l := range k.pods {
		for c := range pod.Containers(&l.Spec) {
			if got, want := has(next, uid, c.Name), has(k.ContainerManager, uid, c.Name); got != want {
				k.t.Errorf("%s/%s has %q, in the files %q", uid, c.Name, want, got)
			}
			if got, want := fmt.Sprint(next.Claims.Claims(l.Pod, c)), fmt.Sprint(k.Claims.Claims(l.Pod, c)); got != want {
				k.t.Errorf("%s/%s has of its claim %s, in the file %s", uid, c.Name, want, got)
			}
		}
	}
	if got, want := next.Devices.Allocated(), k.Devices.Allocated(); !maps.Equal(got, want) {
		k.t.Errorf("given are %v, in the file %v", want, got)
	}
	if got, want := next.CPUs.CPUs("nobody", "c"), k.CPUs.CPUs("nobody", "c"); got != want {
		k.t.Errorf("shared are the CPUs %s, in the file %s", want, got)
	}
}

// finish ends all pods, and makes sure that everything is there for the next one.
func (k *walk) finish() {
	k.mendDriver()
	for _, uid := range slices.Sorted(maps.Keys(k.pods)) {
		k.goes(k.pods[uid])
	}
	k.topology.Policy = topologymanager.None
	k.cpu.TopologyPolicy = topologymanager.None
	k.restart()
	k.mendDriver()
	for _, uid := range slices.Sorted(maps.Keys(k.pods)) { // what was lost, and found again
		k.goes(k.pods[uid])
	}
	if k.mend != nil {
		k.breakDisk()
	}
	for i, p := range k.plugins {
		_ = os.RemoveAll(filepath.Join(p.Dir, "faults"))
		_ = os.RemoveAll(filepath.Join(p.Dir, "unhealthy"))
		for k.stops[i] != nil {
			k.toggle(i)
		}
		k.toggle(i)
	}
	k.finishClaims()
	k.check()
	p := &v1.Pod{}
	p.UID, p.Name, p.Namespace = "all", "all", "default"
	limits := v1.ResourceList{}
	for _, plugin := range k.plugins {
		limits[v1.ResourceName(plugin.Resource)] = *resource.NewQuantity(int64(len(plugin.Devices)), resource.DecimalSI)
	}
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: limits}}}
	if err := k.Reassign(p); err != nil {
		k.t.Errorf("all devices are free, and a pod gets not all: %v", err)
	}
	if k.memory.Policy == memorymanager.Static && len(k.Memory.Allocatable()) == 0 {
		k.t.Error("no memory is left")
	}
	if t := k.t; t.Failed() {
		t.Fatalf("%s; at the end of:\n%s", k.title(), strings.Join(k.done, "\n"))
	}
}
