package machine

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	cpuFolder  = "sys/devices/system/cpu"
	nodeFolder = "sys/devices/system/node"
)

// Read reads the topology of a machine (kernel documentation, "ABI/stable/sysfs-devices-system-cpu"
// and "ABI/stable/sysfs-devices-node"). root is the machine's root directory: os.DirFS("/"). It
// does not need symbolic links, because all files are in directories of sysfs itself.
//
// Offline CPUs are omitted. A CPU without reported threads is a core; one without a reported socket
// is on socket 0. A machine without NUMA is one node.
//
// An error names the file and the cause.
func Read(root fs.FS) (Machine, error) {
	m, err := read(files{root})
	if err != nil {
		return Machine{}, fmt.Errorf("read the layout of the machine: %w", err)
	}
	return m, nil
}

func read(f files) (Machine, error) {
	online, err := f.list(cpuFolder + "/online")
	if err != nil {
		return Machine{}, err
	}
	if len(online) == 0 {
		return Machine{}, fmt.Errorf("%s: no CPU is online", cpuFolder+"/online")
	}
	m := Machine{CPUs: make([]CPU, 0, len(online))}
	for _, id := range online {
		c, err := f.cpu(id, online)
		if err != nil {
			return Machine{}, err
		}
		m.CPUs = append(m.CPUs, c)
	}
	if err := f.caches(m.CPUs); err != nil {
		return Machine{}, err
	}
	if m.Nodes, err = f.nodes(m.CPUs); err != nil {
		return Machine{}, err
	}
	return m, nil
}

// cpu reads the core and the socket of a CPU.
func (f files) cpu(id int, online []int) (CPU, error) {
	folder := fmt.Sprintf("%s/cpu%d/topology", cpuFolder, id)
	c := CPU{ID: id, Core: id}
	// Kernels before 5.3 have only the second file.
	for _, name := range []string{"core_cpus_list", "thread_siblings_list"} {
		threads, err := f.list(path.Join(folder, name))
		if missing(err) {
			continue
		}
		if err != nil {
			return CPU{}, err
		}
		if !slices.Contains(threads, id) {
			return CPU{}, fmt.Errorf("%s: CPU %d is not among the threads of its own core", path.Join(folder, name), id)
		}
		threads = slices.DeleteFunc(threads, func(t int) bool { return !slices.Contains(online, t) })
		c.Core = threads[0]
		break
	}
	socket, err := f.number(path.Join(folder, "physical_package_id"))
	if err != nil && !missing(err) {
		return CPU{}, err
	}
	c.Socket = max(socket, 0) // -1: not reported by the firmware
	return c, nil
}

type cache struct {
	// id is the kernel's ID; -1 if there is none.
	id int
	// lowest is the lowest ID of the online CPUs that share the cache.
	lowest int
}

// caches sets the last-level cache of each CPU.
func (f files) caches(cpus []CPU) error {
	used := map[int]cache{} // by CPU
	for _, c := range cpus {
		if _, known := used[c.ID]; known {
			continue
		}
		found, sharers, err := f.cache(c.ID)
		if err != nil {
			return err
		}
		// CPUs are sorted by ID, so this is the first that shares the cache.
		found.lowest = c.ID
		for _, id := range sharers {
			used[id] = found
		}
	}
	// Kernels before 4.11, and some later ones, have no IDs. Some hypervisors report the same ID
	// for two caches.
	named, highest, known := true, -1, map[int]cache{}
	for _, c := range used {
		other, twice := known[c.id]
		named = named && c.id >= 0 && (!twice || other == c)
		known[c.id] = c
		highest = max(highest, c.id, c.lowest)
	}
	for i := range cpus {
		c, ok := used[cpus[i].ID]
		switch {
		case !ok:
			// If only some CPUs have an L3 cache, the others get unused IDs.
			cpus[i].Cache = highest + 1 + cpus[i].Socket
		case named:
			cpus[i].Cache = c.id
		default:
			cpus[i].Cache = c.lowest
		}
	}
	return nil
}

// cache returns the L3 cache of a CPU and the CPUs that share it; no CPUs if it has none.
func (f files) cache(cpu int) (cache, []int, error) {
	folder := fmt.Sprintf("%s/cpu%d/cache", cpuFolder, cpu)
	entries, err := fs.ReadDir(f.root, folder)
	if err != nil && !missing(err) {
		return cache{}, nil, fmt.Errorf("read %s: %w", folder, err)
	}
	// The last index usually is the L3 cache.
	for _, e := range slices.Backward(entries) {
		if !strings.HasPrefix(e.Name(), "index") {
			continue
		}
		index := path.Join(folder, e.Name())
		level, err := f.number(index + "/level")
		if err != nil && !missing(err) {
			return cache{}, nil, err
		}
		if level != 3 {
			continue
		}
		sharers, err := f.list(index + "/shared_cpu_list")
		if missing(err) {
			continue
		}
		if err != nil {
			return cache{}, nil, err
		}
		if !slices.Contains(sharers, cpu) {
			return cache{}, nil, fmt.Errorf("%s: CPU %d is not among those that share its own cache", index+"/shared_cpu_list", cpu)
		}
		id, err := f.number(index + "/id")
		if missing(err) {
			id = -1
		} else if err != nil {
			return cache{}, nil, err
		}
		return cache{id: id}, sharers, nil
	}
	return cache{}, nil, nil
}

// nodes reads the NUMA nodes, and sets the node of each CPU.
func (f files) nodes(cpus []CPU) ([]Node, error) {
	ids, err := f.list(nodeFolder + "/online")
	if missing(err) {
		n, err := f.onlyNode()
		return []Node{n}, err
	}
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s: no NUMA node is online", nodeFolder+"/online")
	}
	nodes, at := make([]Node, 0, len(ids)), map[int]int{}
	for _, id := range ids {
		n, err := f.node(id, ids)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
		list := fmt.Sprintf("%s/node%d/cpulist", nodeFolder, id)
		local, err := f.list(list)
		if err != nil {
			return nil, err
		}
		for _, c := range local {
			if other, ok := at[c]; ok {
				return nil, fmt.Errorf("%s: CPU %d is on node %d, too", list, c, other)
			}
			at[c] = id
		}
	}
	for i, c := range cpus {
		id, ok := at[c.ID]
		if !ok {
			return nil, fmt.Errorf("%s/node*/cpulist: CPU %d is on none of the nodes", nodeFolder, c.ID)
		}
		cpus[i].Node = id
	}
	return nodes, nil
}

// node reads an online NUMA node; all are the IDs of the online nodes.
func (f files) node(id int, all []int) (Node, error) {
	folder := fmt.Sprintf("%s/node%d", nodeFolder, id)
	n := Node{ID: id}
	var err error
	if n.Memory, err = f.memTotal(folder + "/meminfo"); err != nil {
		return Node{}, err
	}
	if n.HugePages, err = f.hugePages(folder + "/hugepages"); err != nil {
		return Node{}, err
	}
	costs, err := f.text(folder + "/distance")
	if missing(err) {
		return n, nil
	}
	if err != nil {
		return Node{}, err
	}
	fields := strings.Fields(costs)
	if len(fields) != len(all) {
		return Node{}, fmt.Errorf("%s/distance: has %d distances for %d nodes", folder, len(fields), len(all))
	}
	n.Distances = make(map[int]int, len(all))
	for i, field := range fields {
		if n.Distances[all[i]], err = strconv.Atoi(field); err != nil {
			return Node{}, fmt.Errorf("%s/distance: %q is no number", folder, field)
		}
	}
	return n, nil
}

func (f files) onlyNode() (Node, error) {
	memory, err := f.memTotal("proc/meminfo")
	if err != nil {
		return Node{}, err
	}
	pages, err := f.hugePages("sys/kernel/mm/hugepages")
	if err != nil {
		return Node{}, err
	}
	return Node{Memory: memory, HugePages: pages}, nil
}
