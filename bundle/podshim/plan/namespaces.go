package plan

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// podNamespaces are the namespaces that a pod's containers share with its shim, by their files in
// /proc.
var podNamespaces = map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts", specs.UserNamespace: "user"}

// validateNamespaces validates the namespaces: network, IPC and UTS are the pod's; mounts are each
// container's own, PID and cgroup may be.
func validateNamespaces(c Container) error {
	has := map[specs.LinuxNamespaceType]bool{}
	for i, ns := range c.Spec.Linux.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		want, shared := podNamespaces[ns.Type]
		switch {
		case shared && ns.Path != fmt.Sprintf("/proc/%d/ns/%s", c.Podshim, want):
			return unsupported(field, "%s namespace %q is not the pod's", ns.Type, ns.Path)
		case !shared && ns.Type != specs.PIDNamespace && ns.Type != specs.MountNamespace && ns.Type != specs.CgroupNamespace:
			return unsupported(field, "is of type %q", ns.Type)
		case ns.Type == specs.PIDNamespace && (ns.Path != "") != c.SharesProcesses:
			return unsupported(field, "pid namespace %q is neither the pod's nor of a container in it that runs", ns.Path)
		case !shared && ns.Type != specs.PIDNamespace && ns.Path != "":
			return unsupported(field, "the container shares the %s namespace %q", ns.Type, ns.Path)
		}
		has[ns.Type] = true
	}
	for _, t := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.PIDNamespace, specs.MountNamespace} {
		if !has[t] {
			return unsupported("linux.namespaces", "has none of type %q: the container would be in the host's", t)
		}
	}
	return nil
}

// targetProcPath is where the first process has the /proc of the shared PID namespace after it has
// entered it: c/child.c, TARGET_FD.
const targetProcPath = "/proc/self/fd/4"

// newProcfs reports whether the container gets its own procfs of the PID namespace that it shares.
// The target's mounts are locked in a user namespace: the kernel does not copy its /proc without
// the mounts that hide parts of it.
func newProcfs(c Container) bool { return c.Proc == targetProc && HasUserNamespace(c.Spec) }

// targetProc is the Proc of a container that shares the PID namespace of another container.
const targetProc = "/proc"

// joinPIDNamespace adds the step that joins a shared PID namespace; the process forked at the end
// is in it.
func (p *Plan) joinPIDNamespace(c Container) {
	switch {
	case c.SharesProcesses && c.Proc != "" && !newProcfs(c):
		p.add(opEnterNamespaces, [4]string{c.Proc}, unix.CLONE_NEWNS|unix.CLONE_NEWPID)
	case c.SharesProcesses:
		p.add(opEnterNamespaces, [4]string{}, unix.CLONE_NEWPID)
	}
}
