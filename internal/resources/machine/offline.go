package machine

import (
	"fmt"
	"io/fs"

	"k8s.io/utils/cpuset"
)

// Offline reads which CPUs the machine has that are offline (kernel documentation, "CPU hotplug in
// the Kernel"). The kernel's own list of them also has numbers that no CPU has so far, as in
// virtual machines that may get more; these are not among them.
//
// root is that of [Read]. The error names the file, and what is wrong in it. A kernel that does not
// tell which CPUs are there has none offline.
func Offline(root fs.FS) (cpuset.CPUSet, error) {
	f := files{root}
	present, err := f.list(cpuFolder + "/present")
	if missing(err) {
		return cpuset.New(), nil
	}
	if err != nil {
		return cpuset.New(), fmt.Errorf("read which CPUs are offline: %w", err)
	}
	online, err := f.list(cpuFolder + "/online")
	if err != nil {
		return cpuset.New(), fmt.Errorf("read which CPUs are offline: %w", err)
	}
	return cpuset.New(present...).Difference(cpuset.New(online...)), nil
}
