// Package seccomp makes of a profile of the OCI specification the program that the kernel runs at each
// system call. It means what runc and libseccomp mean by a profile, the answer ENOSYS to calls newer than
// all that the profile names included.
//
// Owns: what a profile means, and the program.
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

// Error says what of a profile cannot be done, by the field in linux.seccomp, or, if it is Wrong, what has no
// meaning.
type Error struct {
	Field, Why string
	Wrong      bool
}

func (e *Error) Error() string { return "linux.seccomp." + e.Field + ": " + e.Why }

func refused(field, why string, args ...any) error {
	return &Error{Field: field, Why: fmt.Sprintf(why, args...)}
}

func wrong(field, why string, args ...any) error {
	return &Error{Field: field, Why: fmt.Sprintf(why, args...), Wrong: true}
}

// abi is a way to ask the kernel for something: the numbers of its system calls, and the width of their
// arguments.
type abi struct {
	id      uint32 // of the audit system, which the kernel tells a filter
	numbers map[string]uint32
	narrow  bool // 32 bits of an argument count
}

// abis are those that a processor with a table has, its own first.
var abis = map[string][]specs.Arch{
	"amd64": {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
	"arm64": {specs.ArchAARCH64, specs.ArchARM},
}

var tables = map[specs.Arch]abi{
	specs.ArchX86_64: table(arch.X86_64, wide), specs.ArchX86: table(arch.I386, narrow), specs.ArchX32: table(arch.X32, narrow),
	specs.ArchAARCH64: table(arch.AARCH64, wide), specs.ArchARM: table(arch.ARM, narrow),
}

type width bool

const (
	wide   width = false
	narrow width = true
)

// table takes a library's list. Its list of x32 has some names twice: a call that takes other structures
// there has a number of its own, the greater one.
func table(info *arch.Info, w width) abi {
	a := abi{id: uint32(info.ID), numbers: map[string]uint32{}, narrow: bool(w)}
	for n, name := range info.SyscallNumbers {
		a.numbers[name] = max(a.numbers[name], uint32(n|info.SeccompMask))
	}
	return a
}

// foreign are what a profile may name beside, as it is made for each machine: calls of theirs do not come.
var foreign = []specs.Arch{
	specs.ArchMIPS, specs.ArchMIPS64, specs.ArchMIPS64N32, specs.ArchMIPSEL, specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64,
	specs.ArchPPC64LE, specs.ArchS390, specs.ArchS390X, specs.ArchPARISC, specs.ArchPARISC64, specs.ArchRISCV64, specs.ArchLOONGARCH64, specs.ArchM68K,
	specs.ArchSH, specs.ArchSHEB,
}

// rule is an answer to a call whose arguments fulfil all conditions.
type rule struct {
	conditions []specs.LinuxSeccompArg
	answer     uint32
}

// calls are the rules for each number of a call.
type calls map[uint32][]rule

// The answers of the kernel's, with a number in the lower half.
var actions = map[specs.LinuxSeccompAction]uint32{
	specs.ActKill: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillThread: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillProcess: unix.SECCOMP_RET_KILL_PROCESS,
	specs.ActTrap: unix.SECCOMP_RET_TRAP, specs.ActErrno: unix.SECCOMP_RET_ERRNO, specs.ActTrace: unix.SECCOMP_RET_TRACE, specs.ActLog: unix.SECCOMP_RET_LOG,
	specs.ActAllow: unix.SECCOMP_RET_ALLOW,
}

// answer is what the kernel is told for an action. errnoRet goes with two of them alone, as in runc.
func answer(field string, action specs.LinuxSeccompAction, errnoRet *uint) (uint32, error) {
	a, ok := actions[action]
	switch {
	case action == specs.ActNotify:
		return 0, refused(field, "is %s, and the keeper hands no calls to a listener: use another action", action)
	case !ok:
		return 0, wrong(field, "%q is not an action", action)
	case action != specs.ActErrno && action != specs.ActTrace:
		return a, nil
	case errnoRet == nil:
		return a | uint32(unix.EPERM), nil
	case *errnoRet > 0xffff:
		return 0, wrong(field, "has the errno %d, which is more than 65535", *errnoRet)
	}
	return a | uint32(*errnoRet), nil
}

// flags are those of seccomp(2). SECCOMP_FILTER_FLAG_TSYNC changes nothing: the process has one thread.
var flags = map[specs.LinuxSeccompFlag]uint64{
	"SECCOMP_FILTER_FLAG_TSYNC": 0, specs.LinuxSeccompFlagLog: unix.SECCOMP_FILTER_FLAG_LOG, specs.LinuxSeccompFlagSpecAllow: unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
}

func profileFlags(list []specs.LinuxSeccompFlag) (uint64, error) {
	if list == nil { // an empty list is none, and no list is this one
		list = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagSpecAllow}
	}
	var all uint64
	for i, f := range list {
		bit, ok := flags[f]
		if !ok {
			return 0, refused(fmt.Sprintf("flags[%d]", i), "%q is not known to the keeper", f)
		}
		all |= bit
	}
	return all, nil
}

// profile is a profile whose names are numbers.
type profile struct {
	flags     uint64
	otherwise uint32 // the answer where no rule fits
	abis      []specs.Arch
	calls     map[specs.Arch]calls
	last      map[specs.Arch]uint32 // the newest call that is named; none if the answer beyond it is no other
}

// read checks a profile for a processor.
func read(p *specs.LinuxSeccomp, goarch string) (*profile, error) {
	known, ok := abis[goarch]
	switch {
	case !ok:
		return nil, refused("architectures", "the keeper has no table of the system calls of %s", goarch)
	case p.ListenerPath != "":
		return nil, refused("listenerPath", "is set, and the keeper hands no calls to a listener")
	case p.ListenerMetadata != "":
		return nil, refused("listenerMetadata", "is set, and the keeper hands no calls to a listener")
	}
	out := &profile{calls: map[specs.Arch]calls{}, last: map[specs.Arch]uint32{}}
	var err error
	if out.otherwise, err = answer("defaultAction", p.DefaultAction, p.DefaultErrnoRet); err != nil {
		return nil, err
	}
	if out.flags, err = profileFlags(p.Flags); err != nil {
		return nil, err
	}
	for i, a := range p.Architectures {
		if _, ok := tables[a]; !ok && !slices.Contains(foreign, a) {
			return nil, wrong(fmt.Sprintf("architectures[%d]", i), "%q is not an architecture", a)
		}
	}
	for i, a := range known { // the machine's own is always there
		if i == 0 || slices.Contains(p.Architectures, a) {
			out.abis, out.calls[a] = append(out.abis, a), calls{}
		}
	}
	for i, s := range p.Syscalls {
		if err := out.syscall(fmt.Sprintf("syscalls[%d]", i), s); err != nil {
			return nil, err
		}
	}
	// Who emulates or allows is asked, whatever the call.
	lenient := p.DefaultAction == specs.ActAllow || p.DefaultAction == specs.ActLog || p.DefaultAction == specs.ActTrace
	if lenient || p.DefaultErrnoRet != nil && *p.DefaultErrnoRet == uint(unix.ENOSYS) {
		clear(out.last)
	}
	return out, nil
}

// syscall adds one entry of the list.
func (p *profile) syscall(field string, s specs.LinuxSyscall) error {
	a, err := answer(field+".action", s.Action, s.ErrnoRet)
	if err != nil {
		return err
	}
	if err := checkArgs(field, s.Args); err != nil {
		return err
	}
	for _, name := range s.Names {
		if name == "" {
			return wrong(field+".names", "has an empty name")
		}
		for _, at := range p.abis {
			n, ok := tables[at].numbers[name]
			if !ok { // of another architecture, or of a kernel of later
				continue
			}
			p.last[at] = max(p.last[at], n)
			if a != p.otherwise {
				p.calls[at].add(n, s.Args, a)
			}
		}
		if _, ok := p.calls[specs.ArchX86]; ok && a != p.otherwise {
			p.calls[specs.ArchX86].multiplexed(name, a)
		}
	}
	return nil
}

func checkArgs(field string, args []specs.LinuxSeccompArg) error {
	for i, c := range args {
		if c.Index > 5 {
			return wrong(fmt.Sprintf("%s.args[%d].index", field, i), "is %d, and the last argument is 5", c.Index)
		}
		if !slices.Contains(operators, c.Op) {
			return wrong(fmt.Sprintf("%s.args[%d].op", field, i), "%q is not an operator", c.Op)
		}
	}
	return nil
}

var operators = []specs.LinuxSeccompOperator{
	specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
}

// add adds a rule. Where two conditions are about the same argument, each is a rule of its own: so runc
// does it, and profiles rely upon it.
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

// Calls that 32-bit programs of x86 may also make by one call for all, whose first argument tells which.
const socketcall, ipc = 102, 117

var multiplexed = map[string][2]uint64{
	"socket": {socketcall, 1}, "bind": {socketcall, 2}, "connect": {socketcall, 3}, "listen": {socketcall, 4}, "accept": {socketcall, 5},
	"getsockname": {socketcall, 6}, "getpeername": {socketcall, 7}, "socketpair": {socketcall, 8}, "send": {socketcall, 9}, "recv": {socketcall, 10},
	"sendto": {socketcall, 11}, "recvfrom": {socketcall, 12}, "shutdown": {socketcall, 13}, "setsockopt": {socketcall, 14}, "getsockopt": {socketcall, 15},
	"sendmsg": {socketcall, 16}, "recvmsg": {socketcall, 17}, "accept4": {socketcall, 18}, "recvmmsg": {socketcall, 19}, "sendmmsg": {socketcall, 20},
	"semop": {ipc, 1}, "semget": {ipc, 2}, "semctl": {ipc, 3}, "semtimedop": {ipc, 4}, "msgsnd": {ipc, 11}, "msgrcv": {ipc, 12}, "msgget": {ipc, 13},
	"msgctl": {ipc, 14}, "shmat": {ipc, 21}, "shmdt": {ipc, 22}, "shmget": {ipc, 23}, "shmctl": {ipc, 24},
}

// multiplexed adds the rule for such a call. Its arguments are in memory, where no filter sees them, so
// conditions do not count: that is libseccomp's choice, without which old programs do not run.
func (c calls) multiplexed(name string, a uint32) {
	if m, ok := multiplexed[name]; ok {
		c.add(uint32(m[0]), []specs.LinuxSeccompArg{{Index: 0, Value: m[1], Op: specs.OpEqualTo}}, a)
	}
}

// effective are the rules of a call in the order in which they are asked: the first that fits counts. One
// without conditions is asked before all others.
func effective(rules []rule) []rule {
	for _, r := range rules {
		if len(r.conditions) == 0 {
			return []rule{r}
		}
	}
	return rules
}

// native is the processor that this program runs on.
const native = runtime.GOARCH
