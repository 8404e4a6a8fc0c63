package cgroups

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// find adds unknown pods that have cgroups.
func (m *Manager) find() error {
	for _, class := range classes {
		found, err := m.tree.listClass(class)
		if err != nil {
			return err
		}
		for uid, dirs := range found {
			e := readRequests(dirs)
			e.class, e.found = class, true
			m.mu.Lock()
			if _, known := m.pods[uid]; !known {
				m.pods[uid] = e
			}
			m.mu.Unlock()
		}
	}
	return nil
}

// requestsAttr is the extended attribute of a pod's cgroup with the pod's requests: millicores, and
// bytes of memory. On cgroup version 2 the values are not exact: a weight stands for some 26
// shares. It is deleted with the cgroup, and needs CAP_SYS_ADMIN, as all "trusted" attributes.
const requestsAttr = "trusted.berth.requests"

// writeRequests stores the pod's requests in the attribute of its cgroup directory.
func writeRequests(dir string, e ensured) error {
	if err := unix.Setxattr(dir, requestsAttr, fmt.Appendf(nil, "%d %d", e.milliCPU, e.memory), 0); err != nil {
		return &fs.PathError{Op: "setxattr", Path: dir, Err: err}
	}
	return nil
}

// readRequests returns the requests of a pod from its cgroup directories, exact or approximate.
func readRequests(dirs []string) ensured {
	e := ensured{milliCPU: readMilliCPU(dirs), memory: readProtected(dirs)}
	for _, d := range dirs {
		var b [64]byte
		n, err := unix.Getxattr(d, requestsAttr, b[:])
		if err != nil {
			continue
		}
		// If the weight has changed since, the attribute is outdated.
		var kept ensured
		if _, err := fmt.Sscanf(string(b[:n]), "%d %d", &kept.milliCPU, &kept.memory); err == nil &&
			WeightFromShares(SharesFromMilliCPU(kept.milliCPU)) == WeightFromShares(SharesFromMilliCPU(e.milliCPU)) {
			return kept
		}
	}
	return e
}

// readMilliCPU returns the request that results in the cgroup's shares or weight, or zero.
func readMilliCPU(dirs []string) int64 {
	if shares, ok := readNumber(dirs, "cpu.shares"); ok {
		return milliCPUFromShares(uint64(shares))
	}
	weight, ok := readNumber(dirs, "cpu.weight")
	if !ok {
		return 0
	}
	return milliCPUFromShares(sharesFromWeight(uint64(weight)))
}

// readProtected returns the protected memory of a cgroup, in bytes.
func readProtected(dirs []string) int64 {
	for _, file := range []string{"memory.min", "memory.low"} {
		if n, ok := readNumber(dirs, file); ok && n > 0 {
			return n
		}
	}
	return 0
}

func readNumber(dirs []string, file string) (int64, bool) {
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, file))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return n, err == nil && n >= 0
	}
	return 0, false
}
