package machinetest

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing/fstest"

	"k8s.io/utils/cpuset"
)

// Tree returns the machine's sysfs and procfs files, with the kernel's symbolic links and with
// additional, irrelevant content.
func (s Shape) Tree() fstest.MapFS {
	t := tree{Shape: s.whole(), fs: fstest.MapFS{}}
	t.cpus()
	t.put("proc/meminfo", "MemTotal:       %d kB\nMemFree:        1024 kB\nHugePages_Total:       0\n",
		int64(t.nodes()+t.MemoryNodes)*t.Memory>>10)
	t.hugePages("sys/kernel/mm/hugepages", t.nodes()+t.MemoryNodes)
	if !t.lacks(NUMA) {
		t.numa()
	}
	return t.fs
}

type tree struct {
	Shape
	fs fstest.MapFS
}

func (t tree) put(name, format string, args ...any) {
	t.fs[name] = &fstest.MapFile{Data: fmt.Appendf(nil, format, args...), Mode: 0o444}
}

// list returns the matching CPUs in the kernel's list format.
func list(cpus []place, is func(place) bool) string {
	var ids []int
	for _, p := range cpus {
		if is(p) {
			ids = append(ids, p.id)
		}
	}
	return cpuset.New(ids...).String()
}

func every(place) bool { return true }

func (t tree) cpus() {
	const folder = "sys/devices/system/cpu/"
	all, online := t.places(), t.online()
	t.put(folder+"online", "%s\n", list(online, every))
	t.put(folder+"possible", "%s\n", list(all, every))
	t.put(folder+"present", "%s\n", list(all, every))
	t.put(folder+"offline", "%s\n", list(all, func(p place) bool { return !slices.Contains(online, p) }))
	t.put(folder+"cpufreq/boost", "1\n")
	for _, p := range all {
		t.put(fmt.Sprintf("%scpu%d/uevent", folder, p.id), "DRIVER=processor\n")
	}
	for _, p := range online {
		cpu := fmt.Sprintf("%scpu%d/", folder, p.id)
		core := list(online, func(o place) bool { return o.core == p.core })
		if !t.lacks(Topology) {
			if !t.lacks(NewNames) {
				t.put(cpu+"topology/core_cpus_list", "%s\n", core)
			}
			t.put(cpu+"topology/thread_siblings_list", "%s\n", core)
			socket := p.socket * t.SocketStep
			if t.lacks(Packages) {
				socket = -1
			}
			t.put(cpu+"topology/physical_package_id", "%d\n", socket)
			t.put(cpu+"topology/core_id", "%d\n", p.core%t.Cores)
		}
		if !t.lacks(Caches) {
			t.caches(cpu+"cache/", p, core)
		}
	}
}

// caches adds two L1 caches, an L2 and an L3 cache.
func (t tree) caches(folder string, p place, core string) {
	l3 := list(t.online(), func(o place) bool { return o.cache == p.cache })
	for i, c := range []struct {
		level, id int
		kind      string
		shared    string
	}{
		{1, p.core, "Data", core},
		{1, p.core, "Instruction", core},
		{2, p.core, "Unified", core},
		{3, p.cache * t.CacheStep, "Unified", l3},
	} {
		index := fmt.Sprintf("%sindex%d/", folder, i)
		t.put(index+"level", "%d\n", c.level)
		t.put(index+"type", "%s\n", c.kind)
		t.put(index+"shared_cpu_list", "%s\n", c.shared)
		if !t.lacks(CacheIDs) {
			t.put(index+"id", "%d\n", c.id)
		}
	}
	t.put(folder+"uevent", "")
}

func (t tree) numa() {
	const folder = "sys/devices/system/node/"
	n, online := t.nodes()+t.MemoryNodes, t.online()
	var ids []int
	for i := range n {
		ids = append(ids, i*t.NodeStep)
	}
	t.put(folder+"online", "%s\n", cpuset.New(ids...))
	t.put(folder+"has_cpu", "%s\n", cpuset.New(ids[:t.nodes()]...))
	for i := range n {
		node := fmt.Sprintf("%snode%d/", folder, i*t.NodeStep)
		here := func(p place) bool { return p.node == i }
		t.put(node+"cpulist", "%s\n", list(online, here))
		for _, p := range online {
			if here(p) {
				t.fs[fmt.Sprintf("%scpu%d", node, p.id)] = &fstest.MapFile{
					Data: fmt.Appendf(nil, "../../cpu/cpu%d", p.id), Mode: fs.ModeSymlink | 0o777,
				}
			}
		}
		id := i * t.NodeStep
		t.put(node+"meminfo", "\nNode %d MemTotal:       %d kB\nNode %d MemFree:        1024 kB\nNode %d HugePages_Total:     0\n",
			id, t.Memory>>10, id, id)
		t.hugePages(node+"hugepages", 1)
		if !t.lacks(Distances) {
			var costs []string
			for j := range n {
				costs = append(costs, fmt.Sprint(t.distance(i, j)))
			}
			t.put(node+"distance", "%s\n", strings.Join(costs, " "))
		}
	}
}

// hugePages adds the hugepages of n nodes together.
func (t tree) hugePages(folder string, n int) {
	for size, pages := range maps.All(t.HugePages) {
		of := fmt.Sprintf("%s/hugepages-%dkB/", folder, size>>10)
		t.put(of+"nr_hugepages", "%d\n", pages*int64(n))
		t.put(of+"free_hugepages", "0\n")
	}
}
