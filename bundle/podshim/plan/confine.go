package plan

import (
	"errors"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/seccomp"
)

// Confinement is the part of a container's specification that applies to each of its processes,
// including execs.
type Confinement struct {
	Label  string          // SELinux label of the container's files, or ""
	filter *seccomp.Filter // nil without one
	userns *userNamespace
}

// Confine returns the confinement of a specification. An unsupported request is a *FieldError.
func Confine(spec *specs.Spec) (Confinement, error) {
	c := Confinement{Label: spec.Linux.MountLabel}
	var err error
	if c.userns, err = userNamespaceOf(spec); err != nil || spec.Linux.Seccomp == nil {
		return c, err
	}
	c.filter, err = seccomp.Compile(spec.Linux.Seccomp)
	var e *seccomp.Error
	if errors.As(err, &e) {
		err = &FieldError{Field: "linux.seccomp." + e.Field, Reason: e.Reason, Invalid: e.Invalid}
	} else if err != nil {
		err = unsupported("linux.seccomp", "%s", err)
	}
	return c, err
}

// capSysAdmin is the capability that loading a filter needs without no-new-privileges.
const capSysAdmin = 1 << unix.CAP_SYS_ADMIN

// privileges adds the steps after which the process has exactly its program's privileges. With
// no-new-privileges the filter comes last. Otherwise it is loaded with an extra capability, which
// is dropped afterwards: the profile must then allow the calls that drop capabilities and start the
// program. It returns the index of the step that loads the filter, or -1.
func (p *Plan) privileges(process *specs.Process, confined Confinement) int {
	u, caps := process.User, process.Capabilities
	if caps == nil {
		caps = &specs.LinuxCapabilities{}
	}
	effective, permitted, inheritable, ambient := capabilityMask(caps.Effective), capabilityMask(caps.Permitted), capabilityMask(caps.Inheritable), capabilityMask(caps.Ambient)
	filter := -1
	load := func() {
		filter = len(p.steps)
		p.add(opSeccompFilter, [4]string{string(confined.filter.Program)}, confined.filter.Flags, uint64(len(confined.filter.Program)/seccomp.InstructionSize))
	}
	p.prctl(unix.PR_SET_KEEPCAPS, 1) // while the user changes; the next step sets the capabilities
	p.add(opSetIDs, [4]string{}, uint64(u.UID), uint64(u.GID), capabilityMask(caps.Bounding))
	late := confined.filter != nil && !process.NoNewPrivileges
	if late {
		p.add(opSetCapabilities, [4]string{}, effective, permitted|capSysAdmin, inheritable)
		p.add(opPrepareProgram, [4]string{})
		p.add(opSetCapabilities, [4]string{}, effective|capSysAdmin, permitted|capSysAdmin, inheritable)
		load()
	}
	p.add(opSetCapabilities, [4]string{}, effective, permitted, inheritable)
	for i := range uint64(64) {
		if ambient>>i&1 != 0 {
			p.prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, i)
		}
	}
	if !late {
		p.add(opPrepareProgram, [4]string{})
	}
	if process.NoNewPrivileges {
		p.prctl(unix.PR_SET_NO_NEW_PRIVS, 1)
		if confined.filter != nil {
			load()
		}
	}
	return filter
}

// prctl adds a prctl(2) step.
func (p *Plan) prctl(n ...uint64) { p.add(opPrctl, [4]string{}, n...) }

// execSyscalls are the system calls of an exec between the container's filter and its program, if
// the filter is loaded before it joins the container's processes.
var execSyscalls = map[string][]uint64{
	"clone": {unix.CLONE_PARENT | uint64(unix.SIGCHLD)}, "exit_group": nil, "setsid": nil, "ioctl": {0, unix.TIOCSCTTY}, "sendmsg": {3}, "read": {3},
}

// allowsExec reports whether the filter allows these calls. If not, it is loaded after them, when
// other processes of the container can see this one.
func allowsExec(f *seccomp.Filter) bool {
	for name, args := range execSyscalls {
		if !f.Allows(name, args...) {
			return false
		}
	}
	return true
}

// joinConfined adds the rights of a process that is forked into the container's namespaces, with
// its filter before the fork if possible.
func (p *Plan) joinConfined(process *specs.Process, c Confinement) error {
	filter := p.privileges(process, c)
	p.stepsBeforeStart = len(p.steps)
	if filter >= 0 && !allowsExec(c.filter) {
		p.stepsBeforeStart = filter
		return validateLateFilter(process)
	}
	return nil
}

// validateLateFilter rejects CAP_SYS_PTRACE with a late filter: a process that may trace another
// before its filter is loaded could bypass the filter.
func validateLateFilter(process *specs.Process) error {
	if process.Capabilities != nil && slices.Contains(process.Capabilities.Bounding, "CAP_SYS_PTRACE") {
		return unsupported("linux.seccomp", "denies what an exec is made by (clone, exit_group, setsid, ioctl, sendmsg, read), and CAP_SYS_PTRACE lets the container trace it before its filter is loaded")
	}
	return nil
}
