// Package seccomp compiles a seccomp profile of the OCI specification to the program that the
// kernel runs at each system call. It interprets a profile as runc and libseccomp do, including
// ENOSYS for calls newer than all that the profile names.
//
// Owns: the semantics of a profile, and the program.
// Reads: the profile that it is given.
// Never: loads a program.
package seccomp

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Error names the field in linux.seccomp that is not supported or, if Invalid is set, invalid.
type Error struct {
	Field, Reason string
	Invalid       bool
}

func (e *Error) Error() string { return "linux.seccomp." + e.Field + ": " + e.Reason }

func unsupported(field, reason string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(reason, args...)}
}

func invalid(field, reason string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(reason, args...), Invalid: true}
}

// abi is a system call ABI: the numbers of its system calls, and the width of their arguments.
type abi struct {
	id      uint32 // the audit architecture, which the kernel passes to a filter
	numbers map[string]uint32
	width   width
}

// abis are the supported ABIs of each processor, its own first.
var abis = map[string][]specs.Arch{
	"amd64": {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
	"arm64": {specs.ArchAARCH64, specs.ArchARM},
}

var tables = map[specs.Arch]abi{
	specs.ArchX86_64: table(arch.X86_64, wide), specs.ArchX86: table(arch.I386, narrow), specs.ArchX32: table(arch.X32, narrow),
	specs.ArchAARCH64: table(arch.AARCH64, wide), specs.ArchARM: table(arch.ARM, narrow),
}

// width is how many bits of an argument are used: 32 if narrow, else 64.
type width bool

const (
	wide   width = false
	narrow width = true
)

// table converts the library's list. Its list of x32 has duplicate names: a call with other
// structures has its own, greater number.
func table(info *arch.Info, w width) abi {
	a := abi{id: uint32(info.ID), numbers: map[string]uint32{}, width: w}
	for n, name := range info.SyscallNumbers {
		a.numbers[name] = max(a.numbers[name], uint32(n|info.SeccompMask))
	}
	return a
}

// foreignArchs are further architectures that a profile may name, because profiles are written for
// all machines: their calls cannot occur.
var foreignArchs = []specs.Arch{
	specs.ArchMIPS, specs.ArchMIPS64, specs.ArchMIPS64N32, specs.ArchMIPSEL, specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64,
	specs.ArchPPC64LE, specs.ArchS390, specs.ArchS390X, specs.ArchPARISC, specs.ArchPARISC64, specs.ArchRISCV64, specs.ArchLOONGARCH64, specs.ArchM68K,
	specs.ArchSH, specs.ArchSHEB,
}

// rule is the action for a call whose arguments match all conditions.
type rule struct {
	conditions []specs.LinuxSeccompArg
	action     uint32
}

// calls are the rules by call number.
type calls map[uint32][]rule

// The kernel's actions, without their data in the lower half.
var actions = map[specs.LinuxSeccompAction]uint32{
	specs.ActKill: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillThread: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillProcess: unix.SECCOMP_RET_KILL_PROCESS,
	specs.ActTrap: unix.SECCOMP_RET_TRAP, specs.ActErrno: unix.SECCOMP_RET_ERRNO, specs.ActTrace: unix.SECCOMP_RET_TRACE, specs.ActLog: unix.SECCOMP_RET_LOG,
	specs.ActAllow: unix.SECCOMP_RET_ALLOW,
}

// actionValue returns the kernel's value for an action. Only two actions use errnoRet, as in runc.
func actionValue(field string, action specs.LinuxSeccompAction, errnoRet *uint) (uint32, error) {
	a, ok := actions[action]
	switch {
	case action == specs.ActNotify:
		return 0, unsupported(field, "is %s, and the pod shim hands no calls to a listener: use another action", action)
	case !ok:
		return 0, invalid(field, "%q is not an action", action)
	case action != specs.ActErrno && action != specs.ActTrace:
		return a, nil
	case errnoRet == nil:
		return a | uint32(unix.EPERM), nil
	case *errnoRet > 0xffff:
		return 0, invalid(field, "has the errno %d, which is more than 65535", *errnoRet)
	}
	return a | uint32(*errnoRet), nil
}

// flags are the flags of seccomp(2). SECCOMP_FILTER_FLAG_TSYNC has no effect: the process has one
// thread.
var flags = map[specs.LinuxSeccompFlag]uint64{
	"SECCOMP_FILTER_FLAG_TSYNC": 0, specs.LinuxSeccompFlagLog: unix.SECCOMP_FILTER_FLAG_LOG, specs.LinuxSeccompFlagSpecAllow: unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
}

func profileFlags(list []specs.LinuxSeccompFlag) (uint64, error) {
	if list == nil { // nil means this default, unlike an empty list
		list = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagSpecAllow}
	}
	var all uint64
	for i, f := range list {
		bit, ok := flags[f]
		if !ok {
			return 0, unsupported(fmt.Sprintf("flags[%d]", i), "%q is not known to the podshim", f)
		}
		all |= bit
	}
	return all, nil
}

// profile is a profile with numbers in place of names.
type profile struct {
	flags         uint64
	defaultAction uint32 // the action if no rule matches
	abis          []specs.Arch
	calls         map[specs.Arch]calls
	last          map[specs.Arch]uint32 // the newest named call; none if the action beyond it is the same
}

// read validates a profile for a processor.
func read(p *specs.LinuxSeccomp, goarch string) (*profile, error) {
	known, ok := abis[goarch]
	switch {
	case !ok:
		return nil, unsupported("architectures", "the pod shim has no table of the system calls of %s", goarch)
	case p.ListenerPath != "":
		return nil, unsupported("listenerPath", "is set, and the pod shim hands no calls to a listener")
	case p.ListenerMetadata != "":
		return nil, unsupported("listenerMetadata", "is set, and the pod shim hands no calls to a listener")
	}
	out := &profile{calls: map[specs.Arch]calls{}, last: map[specs.Arch]uint32{}}
	var err error
	if out.defaultAction, err = actionValue("defaultAction", p.DefaultAction, p.DefaultErrnoRet); err != nil {
		return nil, err
	}
	if out.flags, err = profileFlags(p.Flags); err != nil {
		return nil, err
	}
	for i, a := range p.Architectures {
		if _, ok := tables[a]; !ok && !slices.Contains(foreignArchs, a) {
			return nil, invalid(fmt.Sprintf("architectures[%d]", i), "%q is not an architecture", a)
		}
	}
	for i, a := range known { // the machine's own ABI is always included
		if i == 0 || slices.Contains(p.Architectures, a) {
			out.abis, out.calls[a] = append(out.abis, a), calls{}
		}
	}
	for i, s := range p.Syscalls {
		if err := out.syscall(fmt.Sprintf("syscalls[%d]", i), s); err != nil {
			return nil, err
		}
	}
	// A default action that allows or traces, or ENOSYS itself, also applies to newer calls.
	lenient := p.DefaultAction == specs.ActAllow || p.DefaultAction == specs.ActLog || p.DefaultAction == specs.ActTrace
	if lenient || p.DefaultErrnoRet != nil && *p.DefaultErrnoRet == uint(unix.ENOSYS) {
		clear(out.last)
	}
	return out, nil
}

// syscall adds one entry of the list.
func (p *profile) syscall(field string, s specs.LinuxSyscall) error {
	a, err := actionValue(field+".action", s.Action, s.ErrnoRet)
	if err != nil {
		return err
	}
	if err := checkArgs(field, s.Args); err != nil {
		return err
	}
	for _, name := range s.Names {
		if name == "" {
			return invalid(field+".names", "has an empty name")
		}
		for _, at := range p.abis {
			n, ok := tables[at].numbers[name]
			if !ok { // of another architecture or a newer kernel
				continue
			}
			p.last[at] = max(p.last[at], n)
			if a != p.defaultAction {
				p.calls[at].add(n, s.Args, a)
			}
		}
		if _, ok := p.calls[specs.ArchX86]; ok && a != p.defaultAction {
			p.calls[specs.ArchX86].multiplexed(name, a)
		}
	}
	return nil
}

func checkArgs(field string, args []specs.LinuxSeccompArg) error {
	for i, c := range args {
		if c.Index > 5 {
			return invalid(fmt.Sprintf("%s.args[%d].index", field, i), "is %d, and the last argument is 5", c.Index)
		}
		if !slices.Contains(operators, c.Op) {
			return invalid(fmt.Sprintf("%s.args[%d].op", field, i), "%q is not an operator", c.Op)
		}
	}
	return nil
}

var operators = []specs.LinuxSeccompOperator{
	specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
}

// add adds a rule. If two conditions have the same argument, each becomes its own rule: runc does
// so, and profiles rely on it.
func (c calls) add(number uint32, args []specs.LinuxSeccompArg, a uint32) {
	seen := map[uint]bool{}
	for _, arg := range args {
		if seen[arg.Index] {
			for i := range args {
				c[number] = append(c[number], rule{args[i : i+1], a})
			}
			return
		}
		seen[arg.Index] = true
	}
	c[number] = append(c[number], rule{args, a})
}

// Calls that 32-bit x86 programs may also make through a multiplexer call, whose first argument
// selects the call.
const socketcall, ipc = 102, 117

var multiplexed = map[string][2]uint64{
	"socket": {socketcall, 1}, "bind": {socketcall, 2}, "connect": {socketcall, 3}, "listen": {socketcall, 4}, "accept": {socketcall, 5},
	"getsockname": {socketcall, 6}, "getpeername": {socketcall, 7}, "socketpair": {socketcall, 8}, "send": {socketcall, 9}, "recv": {socketcall, 10},
	"sendto": {socketcall, 11}, "recvfrom": {socketcall, 12}, "shutdown": {socketcall, 13}, "setsockopt": {socketcall, 14}, "getsockopt": {socketcall, 15},
	"sendmsg": {socketcall, 16}, "recvmsg": {socketcall, 17}, "accept4": {socketcall, 18}, "recvmmsg": {socketcall, 19}, "sendmmsg": {socketcall, 20},
	"semop": {ipc, 1}, "semget": {ipc, 2}, "semctl": {ipc, 3}, "semtimedop": {ipc, 4}, "msgsnd": {ipc, 11}, "msgrcv": {ipc, 12}, "msgget": {ipc, 13},
	"msgctl": {ipc, 14}, "shmat": {ipc, 21}, "shmdt": {ipc, 22}, "shmget": {ipc, 23}, "shmctl": {ipc, 24},
}

// multiplexed adds the rule for such a call. Its arguments are in memory, where a filter cannot
// read them, so that conditions are ignored: that is libseccomp's choice, without which old
// programs do not run.
func (c calls) multiplexed(name string, a uint32) {
	if m, ok := multiplexed[name]; ok {
		c.add(uint32(m[0]), []specs.LinuxSeccompArg{{Index: 0, Value: m[1], Op: specs.OpEqualTo}}, a)
	}
}

// effective returns the rules of a call in evaluation order: the first match wins. A rule without
// conditions overrides all others.
func effective(rules []rule) []rule {
	for _, r := range rules {
		if len(r.conditions) == 0 {
			return []rule{r}
		}
	}
	return rules
}

const native = runtime.GOARCH
