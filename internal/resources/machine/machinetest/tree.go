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
	t := tree{shape: s.whole(), fs: fstest.MapFS{}}
	t.cpus()
	t.put("proc/meminfo", "MemTotal:       %d kB\nMemFree:        1024 kB\nHugePages_Total:       0\n",
		int64(t.shape.nodes()+t.shape.MemoryNodes)*t.shape.Memory>>10)
	t.hugePages("sys/kernel/mm/hugepages", t.shape.nodes()+t.shape.MemoryNodes)
	if !t.shape.lacks(NUMA) {
		t.numa()
	}
	return t.fs
}

type tree struct {
	shape Shape
	fs    fstest.MapFS
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
	all, online := t.shape.places(), t.shape.online()
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
		if !t.shape.lacks(Topology) {
			if !t.shape.lacks(NewNames) {
				t.put(cpu+"topology/core_cpus_list", "%s\n", core)
			}
			t.put(cpu+"topology/thread_siblings_list", "%s\n", core)
			socket := p.socket * t.shape.SocketStep
			if t.shape.lacks(Packages) {
				socket = -1
			}
			t.put(cpu+"topology/physical_package_id", "%d\n", socket)
			t.put(cpu+"topology/core_id", "%d\n", p.core%t.shape.Cores)
		}
		if !t.shape.lacks(Caches) {
			t.caches(cpu+"cache/", p, core)
		}
	}
}

// caches adds two L1 caches, an L2 and an L3 cache.
func (t tree) caches(folder string, p place, core string) {
	l3 := list(t.shape.online(), func(o place) bool { return o.cache == p.cache })
	for i, c := range []struct {
		level, id int
		kind      string
		shared    string
	}{
		{1, p.core, "Data", core},
		{1, p.core, "Instruction", core},
		{2, p.core, "Unified", core},
		{3, p.cache * t.shape.CacheStep, "Unified", l3},
	} {
		index := fmt.Sprintf("%sindex%d/", folder, i)
		t.put(index+"level", "%d\n", c.level)
		t.put(index+"type", "%s\n", c.kind)
		t.put(index+"shared_cpu_list", "%s\n", c.shared)
		if !t.shape.lacks(CacheIDs) {
			t.put(index+"id", "%d\n", c.id)
		}
	}
	t.put(folder+"uevent", "")
}

func (t tree) numa() {
	const folder = "sys/devices/system/node/"
	n, online := t.shape.nodes()+t.shape.MemoryNodes, t.shape.online()
	var ids []int
	for i := range n {
		ids = append(ids, i*t.shape.NodeStep)
	}
	t.put(folder+"online", "%s\n", cpuset.New(ids...))
	t.put(folder+"has_cpu", "%s\n", cpuset.New(ids[:t.shape.nodes()]...))
	for i := range n {
		node := fmt.Sprintf("%snode%d/", folder, i*t.shape.NodeStep)
		here := func(p place) bool { return p.node == i }
		t.put(node+"cpulist", "%s\n", list(online, here))
		for _, p := range online {
			if here(p) {
				t.fs[fmt.Sprintf("%scpu%d", node, p.id)] = &fstest.MapFile{
					Data: fmt.Appendf(nil, "../../cpu/cpu%d", p.id), Mode: fs.ModeSymlink | 0o777,
				}
			}
		}
		id := i * t.shape.NodeStep
		t.put(node+"meminfo", "\nNode %d MemTotal:       %d kB\nNode %d MemFree:        1024 kB\nNode %d HugePages_Total:     0\n",
			id, t.shape.Memory>>10, id, id)
		t.hugePages(node+"hugepages", 1)
		if !t.shape.lacks(Distances) {
			var costs []string
			for j := range n {
				costs = append(costs, fmt.Sprint(t.shape.distance(i, j)))
			}
			t.put(node+"distance", "%s\n", strings.Join(costs, " "))
		}
	}
}

// hugePages adds the hugepages of n nodes together.
func (t tree) hugePages(folder string, n int) {
	for size, pages := range maps.All(t.shape.HugePages) {
		of := fmt.Sprintf("%s/hugepages-%dkB/", folder, size>>10)
		t.put(of+"nr_hugepages", "%d\n", pages*int64(n))
		t.put(of+"free_hugepages", "0\n")
	}
}
