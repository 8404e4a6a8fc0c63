package preflight

import (
	"errors"
	"fmt"
	"slices"
)

// oldestPodshimKernel supports mount_setattr(2), which makes mounts recursively read-only.
var oldestPodshimKernel = [2]int{5, 12}

// CheckPodshims returns an error if this host cannot run pod shims.
func CheckPodshims() error {
	return checkPodshims(readLine("/proc/sys/kernel/osrelease"), readLine("/proc/sys/vm/memfd_noexec"))
}

// checkPodshims takes the kernel release and the value of vm.memfd_noexec: "" before Linux 6.3.
func checkPodshims(release, noexec string) error {
	if v, err := kernelVersion(release); err != nil || slices.Compare(v[:], oldestPodshimKernel[:]) < 0 {
		return fmt.Errorf("pod shims need Linux 5.12 or newer, and this is %q", release)
	}
	if noexec == "2" {
		return errors.New("pod shims run from memory, which vm.memfd_noexec=2 forbids: set it to 1 (sysctl vm.memfd_noexec=1)")
	}
	return nil
}

// kernelVersion parses the first two numbers of a kernel release.
func kernelVersion(release string) (v [2]int, err error) {
	_, err = fmt.Sscanf(release, "%d.%d", &v[0], &v[1])
	return v, err
}
