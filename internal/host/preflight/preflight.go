// Package preflight checks what pods require of the host, and fixes some of it.
//
// Owns: the checks of "berth check" and their fixes; detection of the host's features and tools.
// Reads: /proc, /sys and /etc, and the output of host programs.
// Never: starts or configures a container runtime.
package preflight

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroups"
	"berth/internal/host/selinux"
)

// Result is the result of a host check.
type Result string

const (
	// OK means that no problem was found.
	OK Result = "ok"
	// Warn means that pods run, but not all pod features work.
	Warn Result = "warn"
	// Missing means that the embedded runtime cannot run pods.
	Missing Result = "missing"
)

// Check is the result of checking one host requirement of pods.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Found  string `json:"found"`
	// Consequence is the effect of the result and its remedy; empty if there is none.
	Consequence string `json:"consequence,omitempty"`
}

// Query parametrizes Run.
type Query struct {
	// Root is the agent's root directory, whose file system is tested for overlays; it need not
	// exist.
	Root string
	// Ports are the TCP ports that the agent would listen on.
	Ports []int
}

// Run checks the host's requirements, in the order in which they are needed. It makes no lasting
// changes.
func Run(q Query) []Check {
	checks := []Check{
		checkRoot(), checkKernel(), checkCgroups(), checkPodshimSupport(), checkOverlay(q.Root), checkPropagation(readFile("/proc/self/mountinfo")), checkSeccomp(), checkHosts("/etc/hosts"), checkFirewall(), checkForwarding(),
		checkForwardPolicy(), checkBridged("/"), checkConntrack(), checkOOM(), checkAppArmor(), checkSELinux(), checkUserNamespaces(), checkPSI(), checkSwap(),
	}
	for _, port := range q.Ports {
		checks = append(checks, checkPort(port))
	}
	return checks
}

func ok(name, found string) Check { return Check{Name: name, Result: OK, Found: found} }

func warn(name, found, consequence string) Check {
	return Check{Name: name, Result: Warn, Found: found, Consequence: consequence}
}

func missing(name, found, consequence string) Check {
	return Check{Name: name, Result: Missing, Found: found, Consequence: consequence}
}

func checkRoot() Check {
	const name = "root"
	if uid := os.Geteuid(); uid != 0 {
		return missing(name, fmt.Sprintf("user %d", uid), "containers need mounts and namespaces; run berth as root")
	}
	if !HasCapability(unix.CAP_SYS_ADMIN) {
		return missing(name, "root without CAP_SYS_ADMIN", "containers need mounts and namespaces; run berth with that capability")
	}
	return ok(name, "root")
}

// oldestKernel supports pidfds that can be polled without blocking (pidfd_open(2), PIDFD_NONBLOCK).
var oldestKernel = [2]int{5, 10}

func checkKernel() Check {
	const name = "kernel"
	release := readLine("/proc/sys/kernel/osrelease")
	v, err := kernelVersion(release)
	if err != nil {
		return warn(name, "release "+strconv.Quote(release), "the version cannot be read from it; berth needs Linux 5.10 or newer")
	}
	if slices.Compare(v[:], oldestKernel[:]) < 0 {
		return missing(name, release, "berth needs Linux 5.10 or newer")
	}
	return ok(name, release)
}

func checkPodshimSupport() Check {
	const name = "podshims"
	if err := CheckPodshims(); err != nil {
		return warn(name, "none", "pods are run by shims and runc, which take more CPU and memory: "+err.Error())
	}
	return ok(name, "they run the pods of berth run (--runtime-handler)")
}

func checkCgroups() Check {
	const name = "cgroups"
	version, controllers := cgroups.Detect()
	found := fmt.Sprintf("version %d: %s", version, strings.Join(controllers, " "))
	if version == 0 {
		return missing(name, "none", "containers cannot be made; mount /sys/fs/cgroup")
	}
	var lacking []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(controllers, c) {
			lacking = append(lacking, c)
		}
	}
	switch {
	case len(lacking) > 0:
		return warn(name, found, "limits of "+strings.Join(lacking, ", ")+" have no effect; enable these controllers")
	case version == 1:
		return warn(name, found, "limits work; what needs version 2 does not (memory.high, swap limits, pressure per pod)")
	}
	return ok(name, found)
}

func checkOverlay(root string) Check {
	const name = "overlayfs"
	dir := existing(root)
	try, err := os.MkdirTemp(dir, ".berth-check-")
	if err != nil {
		return warn(name, "not tried: "+err.Error(), "without it each container gets a full copy of its image")
	}
	err = TryOverlay(try)
	if err := errors.Join(err, os.RemoveAll(try)); err != nil {
		return warn(name, err.Error(), "each container gets a full copy of its image, slow and large; put the root directory on ext4 or xfs")
	}
	return ok(name, "mounts in "+dir)
}

// checkPropagation reads the propagation of / from a mount table (proc(5), mountinfo).
func checkPropagation(mountinfo string) Check {
	const name, remedy = "mount propagation", `; run "mount --make-rshared /"`
	state := ""
	for line := range strings.Lines(mountinfo) {
		before, _, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 6 || fields[4] != "/" {
			continue
		}
		state = "private" // of the topmost mount, which is listed last
		for _, tag := range fields[6:] {
			switch kind, _, _ := strings.Cut(tag, ":"); kind {
			case "shared":
				state = "shared"
			case "master":
				if state != "shared" {
					state = "slave"
				}
			}
		}
	}
	switch state {
	case "shared":
		return ok(name, "/ is a shared mount")
	case "slave":
		return warn(name, "/ is a slave mount", "containers with mountPropagation Bidirectional do not start"+remedy)
	case "private":
		return warn(name, "/ is a private mount", "containers with mountPropagation HostToContainer or Bidirectional do not start"+remedy)
	}
	return warn(name, "/ is not in /proc/self/mountinfo", "containers with mountPropagation may not start"+remedy)
}

// existing returns the directory, or its nearest existing ancestor.
func existing(dir string) string {
	for dir != "/" && dir != "." && dir != "" {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return os.TempDir()
}

func checkSeccomp() Check {
	const name = "seccomp"
	if actions := readLine("/proc/sys/kernel/seccomp/actions_avail"); actions != "" {
		return ok(name, actions)
	}
	return warn(name, "not in this kernel", "containers that ask for a seccomp profile (RuntimeDefault, Localhost) do not start")
}

func checkFirewall() Check {
	const name = "nftables or iptables"
	if backend := DetectFirewall(); backend != "" {
		return ok(name, backend)
	}
	found := "neither nft nor iptables works"
	for _, tool := range []string{"nft", "iptables"} {
		if _, err := FindTool(tool); err == nil {
			found = tool + " is installed, but the kernel refuses it"
		}
	}
	return warn(name, found, "pods reach the host and each other only, and have host ports only if the kernel has nftables; apt-get install nftables")
}

// checkHosts checks the file that the runtime copies into each pod's sandbox.
func checkHosts(path string) Check {
	const name = "/etc/hosts"
	if _, err := os.Stat(path); err != nil {
		return missing(name, err.Error(), `no pod starts, as the runtime copies that file; make one with the line "127.0.0.1 localhost"`)
	}
	return ok(name, "there")
}

func checkForwarding() Check {
	const name = "IPv4 forwarding"
	if readLine("/proc/sys/net/ipv4/ip_forward") == "1" {
		return ok(name, "on")
	}
	return ok(name, "off; the first pod turns it on")
}

func checkForwardPolicy() Check {
	const name = "forwarding policy"
	tool, err := FindTool("iptables")
	if err != nil {
		return ok(name, "no iptables that could forbid it")
	}
	out, err := exec.Command(tool, "-w", "5", "-S", "FORWARD").Output()
	if err != nil {
		return ok(name, "iptables cannot be asked, and so forbids nothing")
	}
	if policy, _, _ := strings.Cut(string(out), "\n"); policy == "-P FORWARD DROP" {
		return warn(name, "iptables drops what is forwarded",
			"pods may not reach beyond the host; allow it: iptables -I FORWARD -i berth+ -j ACCEPT; iptables -I FORWARD -o berth+ -j ACCEPT")
	}
	return ok(name, "forwarding is allowed")
}

func checkConntrack() Check {
	const name = "conntrack"
	limit := readLine("/proc/sys/net/netfilter/nf_conntrack_max")
	if limit == "" {
		// The module is loaded with the first rule that needs it.
		if _, err := FindTool("modprobe"); err != nil {
			return warn(name, "not in this kernel", "addresses cannot be translated: host ports fail")
		}
		return ok(name, "not loaded yet")
	}
	if _, err := FindTool("conntrack"); err != nil {
		return ok(name, "kernel table of "+limit+" entries; the command conntrack, to look at them, is not installed")
	}
	return ok(name, "kernel table of "+limit+" entries")
}

func checkOOM() Check {
	const name = "CAP_SYS_RESOURCE"
	if HasCapability(unix.CAP_SYS_RESOURCE) {
		return ok(name, "held")
	}
	return warn(name, "not held", "no process can be protected from the OOM killer: Guaranteed pods and containerd are killed like any other")
}

func checkAppArmor() Check {
	const name = "AppArmor"
	if readLine("/sys/module/apparmor/parameters/enabled") == "Y" {
		return ok(name, "enabled")
	}
	return warn(name, "not enabled", "pods that ask for an AppArmor profile are refused")
}

func checkSELinux() Check {
	const name = "SELinux"
	switch err := CheckContainerLabels(); {
	case err == nil:
		return ok(name, "with --selinux, containers run as "+selinux.ReadLabels("/").Process)
	case errors.Is(err, errNoSELinux):
		return ok(name, err.Error())
	default:
		return warn(name, err.Error(), "--selinux fails; run berth in a domain that may, such as that of container runtimes")
	}
}

func checkUserNamespaces() Check {
	const name = "user namespaces"
	limit, err := strconv.Atoi(readLine("/proc/sys/user/max_user_namespaces"))
	if err != nil || limit == 0 {
		return warn(name, "not available", "pods with hostUsers: false do not start; set user.max_user_namespaces")
	}
	return ok(name, fmt.Sprintf("up to %d", limit))
}

func checkPSI() Check {
	const name = "pressure stall information"
	// If PSI is compiled in but disabled, the file exists but cannot be read.
	if _, err := os.ReadFile("/proc/pressure/cpu"); err != nil {
		return warn(name, "off", "pressure of CPU, memory and I/O is not reported; boot with psi=1")
	}
	return ok(name, "on")
}

func checkSwap() Check {
	const name = "swap"
	swaps, err := os.ReadFile("/proc/swaps")
	if n := strings.Count(strings.TrimSpace(string(swaps)), "\n"); err == nil && n > 0 {
		return ok(name, fmt.Sprintf("%d areas in use; containers do not swap unless memorySwap.swapBehavior is LimitedSwap", n))
	}
	return ok(name, "none")
}

func checkPort(port int) Check {
	name := fmt.Sprintf("port %d", port)
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return warn(name, "in use", "what berth serves there is not served; stop the other program (ss -ltnp) or choose another port")
	}
	if err != nil {
		return warn(name, err.Error(), "what berth serves there is not served")
	}
	if err := l.Close(); err != nil {
		return warn(name, err.Error(), "the port may stay in use for a while")
	}
	return ok(name, "free")
}

// readFile returns the content of a small file, and "" if it cannot be read.
func readFile(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

func readLine(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}
