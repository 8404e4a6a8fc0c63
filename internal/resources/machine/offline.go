package machine

import (
	"fmt"
	"io/fs"

	"k8s.io/utils/cpuset"
)

// Offline reads which of the machine's CPUs are offline (kernel documentation, "CPU hotplug in the
// Kernel"). Unlike the kernel's own list, it does not contain CPUs that are possible but not
// present, as in virtual machines with CPU hotplug.
//
// root is that of [Read]. An error names the file and the cause. If the kernel does not report
// present CPUs, the result is empty.
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
