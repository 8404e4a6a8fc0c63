package cgroups

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	lib "github.com/opencontainers/cgroups"
	libmanager "github.com/opencontainers/cgroups/manager"
)

// Detect returns the cgroup version of the host (1 or 2; a hybrid host is 1) and the sorted names
// of its usable controllers. Version 0 means that no cgroup hierarchy was found.
func Detect() (version int, controllers []string) {
	mounts, err := lib.GetCgroupMounts(true)
	if err != nil {
		return 0, nil
	}
	for _, m := range mounts {
		for _, c := range m.Subsystems {
			// Named hierarchies of version 1 (name=systemd) have no controllers.
			if c != "" && !strings.HasPrefix(c, lib.CgroupNamePrefix) {
				controllers = append(controllers, c)
			}
		}
	}
	if len(controllers) == 0 {
		return 0, nil
	}
	slices.Sort(controllers)
	version = 1
	if lib.IsCgroup2UnifiedMode() {
		version = 2
	}
	return version, slices.Compact(controllers)
}

// SwapAccounted reports whether the kernel can limit the swap of cgroups: kernels can be built or
// booted without it.
func SwapAccounted() bool {
	for _, pattern := range []string{"memory/memory.memsw.limit_in_bytes", "*/memory.swap.max"} { // version 1, version 2: the root has no limit
		if found, err := filepath.Glob(filepath.Join(mountpoint, pattern)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// HugePageSizes returns the sizes in bytes of hugepages that can be limited for a cgroup, sorted.
func HugePageSizes() []int64 {
	return slices.Sorted(maps.Keys(detectHost().pageSizes))
}

// mountpoint is where cgroup hierarchies are mounted (systemd's file hierarchy, and the library's).
const mountpoint = "/sys/fs/cgroup"

// limited are the controllers of pod limits.
var limited = []string{"cpu", "hugetlb", "memory", "pids"}

// host describes the host's cgroup features; it does not change while the agent runs.
type host struct {
	version   int
	has       map[string]bool
	pageSizes map[int64]string // name in the hugetlb controller by size in bytes
	// tops are the directories of the hierarchies of version 1, by controller; nil with version 2.
	// The library would search for them at each call, with some fifty system calls.
	tops map[string]string
}

func detectHost() host {
	h := host{has: map[string]bool{}, pageSizes: map[int64]string{}}
	var controllers []string
	h.version, controllers = Detect()
	for _, c := range controllers {
		h.has[c] = true
	}
	if h.has["hugetlb"] {
		for _, s := range lib.HugePageSizes() {
			if n, ok := hugetlbBytes(s); ok {
				h.pageSizes[n] = s
			}
		}
	}
	if h.version == 1 {
		if top, err := libmanager.New(&lib.Cgroup{Path: "/", Resources: &lib.Resources{SkipDevices: true}}); err == nil {
			h.tops = top.GetPaths()
		}
	}
	return h
}

// paths returns the directories of a cgroup in the hierarchies of version 1; with nil, the library
// searches for them.
func (h host) paths(cgroup string) map[string]string {
	if h.tops == nil {
		return nil
	}
	out := make(map[string]string, len(h.tops))
	for controller, top := range h.tops {
		out[controller] = filepath.Join(top, cgroup)
	}
	return out
}

func (h host) missing() []string {
	var out []string
	for _, c := range limited {
		if !h.has[c] {
			out = append(out, c)
		}
	}
	return out
}

// hugetlbBytes parses a page size of the hugetlb controller: 64KB, 2MB, 1GB, in powers of two.
func hugetlbBytes(s string) (int64, bool) {
	for unit, shift := range map[string]int{"KB": 10, "MB": 20, "GB": 30} {
		if digits, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.ParseInt(digits, 10, 32)
			return n << shift, err == nil
		}
	}
	return 0, false
}

// resources converts values to the library's, without those that the host cannot limit.
func (h host) resources(v podValues) *lib.Resources {
	// The runtime sets device rules, and rewriting a slice must not freeze its pods.
	r := &lib.Resources{SkipDevices: true, SkipFreezeOnSet: true}
	if h.has["cpu"] && v.shares > 0 {
		if h.version == 2 {
			r.CpuWeight = WeightFromShares(v.shares)
		} else {
			r.CpuShares = v.shares
		}
	}
	if h.has["cpu"] && v.quota > 0 {
		r.CpuQuota, r.CpuPeriod = v.quota, uint64(v.period)
	}
	if h.has["memory"] {
		r.Memory = v.memory
	}
	if h.has["pids"] && v.pids != 0 {
		r.PidsLimit = &v.pids
	}
	if h.version == 2 && h.has["memory"] && v.protection != nil {
		r.Unified = map[string]string{
			"memory.min": strconv.FormatInt(v.protection.min, 10), "memory.low": strconv.FormatInt(v.protection.low, 10),
		}
	}
	if v.hugePages != nil {
		for size, spelling := range h.pageSizes {
			r.HugetlbLimit = append(r.HugetlbLimit, &lib.HugepageLimit{Pagesize: spelling, Limit: uint64(v.hugePages[size])})
		}
	}
	return r
}
