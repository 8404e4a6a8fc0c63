package plan

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// podFiles are the namespaces that a pod's containers share with its shim, by their files in /proc.
var podFiles = map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts", specs.UserNamespace: "user"}

// refuseNamespaces validates the namespaces: network, IPC and UTS are the pod's; mounts are each
// container's own, PID and cgroup may be.
func refuseNamespaces(c Container) error {
	has := map[specs.LinuxNamespaceType]bool{}
	for i, ns := range c.Spec.Linux.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		want, shared := podFiles[ns.Type]
		switch {
		case shared && ns.Path != fmt.Sprintf("/proc/%d/ns/%s", c.Podshim, want):
			return refused(field, "%s namespace %q is not the pod's", ns.Type, ns.Path)
		case !shared && ns.Type != specs.PIDNamespace && ns.Type != specs.MountNamespace && ns.Type != specs.CgroupNamespace:
			return refused(field, "is of type %q", ns.Type)
		case ns.Type == specs.PIDNamespace && (ns.Path != "") != c.SharesProcesses:
			return refused(field, "pid namespace %q is neither the pod's nor of a container in it that runs", ns.Path)
		case !shared && ns.Type != specs.PIDNamespace && ns.Path != "":
			return refused(field, "the container shares the %s namespace %q", ns.Type, ns.Path)
		}
		has[ns.Type] = true
	}
	for _, t := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.PIDNamespace, specs.MountNamespace} {
		if !has[t] {
			return refused("linux.namespaces", "has none of type %q: the container would be in the host's", t)
		}
	}
	return nil
}

// theirs is where the first process has the /proc of the shared PID namespace after it has entered
// it: c/first.c, TARGET.
const theirs = "/proc/self/fd/4"

// newProcfs reports whether the container gets its own procfs of the PID namespace that it shares.
// The target's mounts are locked in a user namespace: the kernel does not copy its /proc without
// the mounts that hide parts of it.
func newProcfs(c Container) bool { return c.Proc == targetProc && HasUsers(c.Spec) }

// targetProc is the Proc of a container that shares the PID namespace of another container.
const targetProc = "/proc"

// share adds the step that joins a shared PID namespace; the process forked at the end is in it.
func (p *Plan) share(c Container) {
	switch {
	case c.SharesProcesses && c.Proc != "" && !newProcfs(c):
		p.add(opEnter, [4]string{c.Proc}, unix.CLONE_NEWNS|unix.CLONE_NEWPID)
	case c.SharesProcesses:
		p.add(opEnter, [4]string{}, unix.CLONE_NEWPID)
	}
}
