package plan

import (
	"errors"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/keeper/seccomp"
)

// Confinement is what a container's specification says of each of its processes, execs included, beyond
// what it says of the first alone.
type Confinement struct {
	Label  string          // of the container's files, by SELinux; empty without one
	filter *seccomp.Filter // nil without one
	user   *user
}

// Confine reads it. What it asks for beyond what a keeper does is a *Refused.
func Confine(spec *specs.Spec) (Confinement, error) {
	c := Confinement{Label: spec.Linux.MountLabel}
	var err error
	if c.user, err = userOf(spec); err != nil || spec.Linux.Seccomp == nil {
		return c, err
	}
	c.filter, err = seccomp.Compile(spec.Linux.Seccomp)
	var e *seccomp.Error
	if errors.As(err, &e) {
		err = &Refused{Field: "linux.seccomp." + e.Field, Why: e.Why, Wrong: e.Wrong}
	} else if err != nil {
		err = refused("linux.seccomp", "%s", err)
	}
	return c, err
}

// admin is the capability without which only a process with no-new-privileges may load a filter.
const admin = 1 << unix.CAP_SYS_ADMIN

// rights are the steps after which the process has what its program may have, and no more. With
// no-new-privileges the filter comes last. Else it is loaded with a capability more, which goes after
// that: of a profile, the giving up of capabilities is asked then, and the start of the program. It returns
// which step loads the filter, or -1.
func (p *Plan) rights(process *specs.Process, confined Confinement) int {
	u, caps := process.User, process.Capabilities
	if caps == nil {
		caps = &specs.LinuxCapabilities{}
	}
	effective, permitted, inheritable, ambient := mask(caps.Effective), mask(caps.Permitted), mask(caps.Inheritable), mask(caps.Ambient)
	filter := -1
	load := func() {
		filter = len(p.steps)
		p.add(opFilter, [4]string{string(confined.filter.Program)}, confined.filter.Flags, uint64(len(confined.filter.Program)/seccomp.InstructionSize))
	}
	p.prctl(unix.PR_SET_KEEPCAPS, 1) // while it becomes another user, until the next step says which ones stay
	p.add(opIDs, [4]string{}, uint64(u.UID), uint64(u.GID), mask(caps.Bounding))
	late := confined.filter != nil && !process.NoNewPrivileges
	if late {
		p.add(opCaps, [4]string{}, effective, permitted|admin, inheritable)
		p.add(opPrepare, [4]string{})
		p.add(opCaps, [4]string{}, effective|admin, permitted|admin, inheritable)
		load()
	}
	p.add(opCaps, [4]string{}, effective, permitted, inheritable)
	for i := range uint64(64) {
		if ambient>>i&1 != 0 {
			p.prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, i)
		}
	}
	if !late {
		p.add(opPrepare, [4]string{})
	}
	if process.NoNewPrivileges {
		p.prctl(unix.PR_SET_NO_NEW_PRIVS, 1)
		if confined.filter != nil {
			load()
		}
	}
	return filter
}

// prctl is a step that is prctl(2).
func (p *Plan) prctl(n ...uint64) { p.add(opPrctl, [4]string{}, n...) }

// entering are the system calls that an exec makes between the container's filter and its program, where
// the filter is loaded before it is among the container's processes.
var entering = map[string][]uint64{
	"clone": {unix.CLONE_PARENT | uint64(unix.SIGCHLD)}, "exit_group": nil, "setsid": nil, "ioctl": {0, unix.TIOCSCTTY}, "sendmsg": {3}, "read": {3},
}

// forks reports whether these are allowed. If not, the filter is loaded after them, when other processes of
// the container see this one.
func forks(f *seccomp.Filter) bool {
	for name, args := range entering {
		if !f.Allows(name, args...) {
			return false
		}
	}
	return true
}

// confined are the rights of who is forked into the container's processes then, with its filter if it can be.
func (p *Plan) confined(process *specs.Process, c Confinement) error {
	filter := p.rights(process, c)
	p.before = len(p.steps)
	if filter >= 0 && !forks(c.filter) {
		p.before = filter
		return refuseLateFilter(process)
	}
	return nil
}

// refuseLateFilter: who may trace such a process before its filter is loaded is not held by the filter.
func refuseLateFilter(process *specs.Process) error {
	if process.Capabilities != nil && slices.Contains(process.Capabilities.Bounding, "CAP_SYS_PTRACE") {
		return refused("linux.seccomp", "denies what an exec is made by (clone, exit_group, setsid, ioctl, sendmsg, read), and CAP_SYS_PTRACE lets the container trace it before its filter is loaded")
	}
	return nil
}
