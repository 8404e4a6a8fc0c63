package shims

import (
	"fmt"
	"maps"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
)

// ipcSysctls are the sysctls of an IPC namespace, without fs.mqueue.
var ipcSysctls = strings.Fields("kernel/msgmax kernel/msgmnb kernel/msgmni kernel/sem kernel/shmall kernel/shmmax kernel/shmmni kernel/shm_rmid_forced")

// sysctlFile returns the path of a sysctl below /proc/sys. As for sysctl(8), the first dot or slash
// of a name is its separator.
func sysctlFile(name string) string {
	if at := strings.IndexAny(name, "./"); at >= 0 && name[at] == '.' {
		return strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	return name
}

// networkDefaults are the sysctls of a pod's network namespace unless the pod sets them, as with
// containerd's enable_unprivileged_ports and enable_unprivileged_icmp. The latter has no effect in
// a user namespace that does not map all groups.
var networkDefaults = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}

// computeSysctls returns the sysctls of a pod, with defaults if it has its own network namespace.
func computeSysctls(sysctls map[string]string, n *runtime.NamespaceOption) map[string]string {
	if n.GetNetwork() != runtime.NamespaceMode_POD {
		return sysctls
	}
	out := maps.Clone(networkDefaults)
	if hasUserNamespace(n) {
		delete(out, "net.ipv4.ping_group_range")
	}
	for name := range sysctls { // in either notation
		delete(out, strings.ReplaceAll(sysctlFile(name), "/", "."))
	}
	maps.Copy(out, sysctls)
	return out
}

// validateSysctls accepts only sysctls of namespaces that the pod does not share.
func validateSysctls(sysctls map[string]string, n *runtime.NamespaceOption) error {
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		file := sysctlFile(name)
		of, mode := "none", runtime.NamespaceMode_NODE
		switch {
		case slices.ContainsFunc(strings.Split(file, "/"), func(part string) bool { return part == "" || part == "." || part == ".." }):
			return invalidArgument(&plan.FieldError{Field: "linux.sysctls[" + name + "]", Reason: "is not the name of a sysctl", Invalid: true})
		case strings.HasPrefix(file, "net/"):
			of, mode = "network", n.GetNetwork()
		case strings.HasPrefix(file, "fs/mqueue/"), slices.Contains(ipcSysctls, file):
			of, mode = "IPC", n.GetIpc()
		case file == "kernel/domainname":
			mode = runtime.NamespaceMode_POD
		}
		if mode != runtime.NamespaceMode_POD {
			why := "is of the whole machine: no pod may set it"
			if of != "none" {
				why = fmt.Sprintf("is of the host's %s namespace, which the pod is in", of)
			}
			return invalidArgument(&plan.FieldError{Field: "linux.sysctls[" + name + "]", Reason: why, Invalid: true})
		}
	}
	return nil
}

// setSysctls sets the sysctls of the pod, in a thread in the pod shim's namespaces.
func (p *pod) setSysctls(sysctls map[string]string) error {
	if len(sysctls) == 0 {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- p.inNamespaces(func() error { return writeSysctls(sysctls) }) }()
	return <-done
}

// inNamespaces calls what in a thread in the pod shim's namespaces. The thread is not unlocked: it
// exits with the goroutine, and runs nothing else.
func (p *pod) inNamespaces(what func() error) error {
	goruntime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // not the main thread, which cannot exit and is /proc/self
		defer goruntime.UnlockOSThread()
		done := make(chan error, 1)
		go func() { done <- p.inNamespaces(what) }()
		return <-done
	}
	p.mu.Lock()
	pidfd := p.pidfd
	p.mu.Unlock()
	if err := unix.Setns(pidfd, unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("enter the pod's namespaces: %w", err)
	}
	if p.rootUID != nil { // root of the user namespace may write them, the host's root may not
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(*p.rootUID), ^uintptr(0)); err != 0 {
			return fmt.Errorf("become root of the pod's user namespace: %w", err)
		}
	}
	return what()
}

// writeSysctls writes to /proc/sys of the thread's namespaces. It does not cross mount points.
func writeSysctls(sysctls map[string]string) error {
	root, err := unix.Open("/proc/sys", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc/sys", Err: err}
	}
	defer unix.Close(root)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(root, &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("/proc/sys is not that of the kernel (%w)", err)
	}
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		fd, err := unix.Openat2(root, sysctlFile(name), &unix.OpenHow{
			Flags: unix.O_WRONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
		if err == nil {
			_, err = unix.Write(fd, []byte(sysctls[name]))
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("linux.sysctls[%s]: set to %q: %w", name, sysctls[name], err)
		}
	}
	return nil
}
