package seccomp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	profiles "github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// abiOf returns the ABI of a call, if the profile includes it.
func abiOf(p *specs.LinuxSeccomp, goarch string, c call) specs.Arch {
	x32 := c.arch == tables[specs.ArchX86_64].id && c.number >= x32Bit
	for i, a := range abis[goarch] {
		listed := i == 0 || slices.Contains(p.Architectures, a)
		switch {
		case x32 && c.number == math.MaxUint32 && !slices.Contains(p.Architectures, specs.ArchX32):
			return specs.ArchX86_64
		case listed && tables[a].id == c.arch && x32 == (a == specs.ArchX32):
			return a
		}
	}
	return ""
}

// holds evaluates a condition as the specification defines it.
func holds(c specs.LinuxSeccompArg, arg uint64) bool {
	switch c.Op {
	case specs.OpNotEqual:
		return arg != c.Value
	case specs.OpLessThan:
		return arg < c.Value
	case specs.OpLessEqual:
		return arg <= c.Value
	case specs.OpEqualTo:
		return arg == c.Value
	case specs.OpGreaterEqual:
		return arg >= c.Value
	case specs.OpGreaterThan:
		return arg > c.Value
	}
	return arg&c.Value == c.ValueTwo&c.Value
}

// fits reports whether all conditions hold, or one of them if two have the same argument.
func fits(args []specs.LinuxSeccompArg, c call, w width) bool {
	all, one, twice := true, false, false
	seen := map[uint]bool{}
	for _, a := range args {
		arg := c.args[a.Index]
		if w == narrow {
			arg, a.Value, a.ValueTwo = uint64(uint32(arg)), uint64(uint32(a.Value)), uint64(uint32(a.ValueTwo))
		}
		twice = twice || seen[a.Index]
		seen[a.Index] = true
		all, one = all && holds(a, arg), one || holds(a, arg)
	}
	return all || twice && one
}

// want returns the action of a profile for a call, as the specification defines it. It shares only
// the tables of names and actions with the compiler.
func want(t testing.TB, p *specs.LinuxSeccomp, goarch string, c call) uint32 {
	t.Helper()
	action := func(a specs.LinuxSeccompAction, errno *uint) uint32 {
		out, err := actionValue("", a, errno)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	otherwise := action(p.DefaultAction, p.DefaultErrnoRet)
	abi := abiOf(p, goarch, c)
	if abi == "" {
		return unix.SECCOMP_RET_KILL_THREAD
	}
	newest, first := int64(-1), int64(-1)
	for _, s := range p.Syscalls {
		a := action(s.Action, s.ErrnoRet)
		for _, name := range s.Names {
			n, ok := tables[abi].numbers[name]
			m, byOne := multiplexed[name]
			byOne = byOne && abi == specs.ArchX86 && uint32(m[0]) == c.number && uint32(m[1]) == uint32(c.args[0])
			if ok {
				newest = max(newest, int64(n))
			}
			direct := ok && n == c.number
			switch {
			case a == otherwise:
			case direct && len(s.Args) == 0:
				return a // precedes all rules with conditions
			case first < 0 && (byOne || direct && fits(s.Args, c, tables[abi].width)):
				first = int64(a)
			}
		}
	}
	lenient := p.DefaultAction == specs.ActAllow || p.DefaultAction == specs.ActLog || p.DefaultAction == specs.ActTrace
	switch {
	case first >= 0:
		return uint32(first)
	case abi == specs.ArchX86_64 && c.number == math.MaxUint32: // with which a tracer skips a call
		return otherwise
	case newest >= 0 && int64(c.number) > newest && !lenient && !(p.DefaultErrnoRet != nil && *p.DefaultErrnoRet == uint(unix.ENOSYS)):
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	return otherwise
}

// some are critical values of comparisons.
var some = []uint64{0, 1, 2, 3, 40, 0xff, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 32, 1<<32 + 1, 1<<32 + 40, 0x7e020000, math.MaxUint64, math.MaxUint64 - 1, 1 << 63}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// randomCall returns a call to which a rule of the profile is likely to apply.
func randomCall(r *rand.Rand, p *specs.LinuxSeccomp, goarch string) call {
	at := tables[pick(r, abis[goarch])]
	c := call{arch: at.id}
	switch r.IntN(10) {
	case 0:
		c.number = r.Uint32()
	case 1:
		c.number = pick(r, []uint32{0, 460, 470, 500, 1000, socketcall, ipc, x32Bit, x32Bit - 1, x32Bit + 600, math.MaxUint32, math.MaxUint32 - 1})
	default:
		name := pick(r, slices.Sorted(maps.Keys(at.numbers)))
		if len(p.Syscalls) > 0 && r.IntN(2) == 0 {
			name = pick(r, pick(r, p.Syscalls).Names)
		}
		c.number = at.numbers[name]
	}
	if r.IntN(20) == 0 {
		c.arch = r.Uint32()
	}
	for i := range c.args {
		switch r.IntN(4) {
		case 0:
			c.args[i] = r.Uint64()
		case 1:
			c.args[i] = uint64(r.IntN(24))
		default:
			c.args[i] = pick(r, some)
		}
	}
	return c
}

func randomProfile(r *rand.Rand) *specs.LinuxSeccomp {
	kinds := []specs.LinuxSeccompAction{specs.ActKill, specs.ActKillProcess, specs.ActTrap, specs.ActErrno, specs.ActErrno, specs.ActTrace, specs.ActLog, specs.ActAllow, specs.ActAllow}
	errno := func() *uint {
		if n := uint(r.IntN(60)); n > 0 {
			return &n
		}
		return nil
	}
	names := append(slices.Sorted(maps.Keys(tables[specs.ArchX86].numbers)), "not_a_call", "socket", "connect", "shmat")
	p := &specs.LinuxSeccomp{DefaultAction: pick(r, kinds), DefaultErrnoRet: errno()}
	for _, a := range []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchARM, specs.ArchMIPS} {
		if r.IntN(2) == 0 {
			p.Architectures = append(p.Architectures, a)
		}
	}
	few := names[r.IntN(len(names)-30):][:30]
	for range r.IntN(60) {
		s := specs.LinuxSyscall{Action: pick(r, kinds), ErrnoRet: errno()}
		for range 1 + r.IntN(8) {
			s.Names = append(s.Names, pick(r, pick(r, [][]string{names, few})))
		}
		for range r.IntN(4) * r.IntN(3) {
			s.Args = append(s.Args, specs.LinuxSeccompArg{Index: uint(r.IntN(6)), Value: pick(r, some), ValueTwo: pick(r, some), Op: pick(r, operators)})
		}
		p.Syscalls = append(p.Syscalls, s)
	}
	return p
}

// defaultProfile returns containerd's profile for a container with these capabilities.
func defaultProfile(bounding ...string) *specs.LinuxSeccomp {
	return profiles.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: bounding}}})
}

func compileFor(t testing.TB, p *specs.LinuxSeccomp, goarch string) *Filter {
	t.Helper()
	f, err := compile(p, goarch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The program returns the action of the profile for each call.
func TestProgramsMatchProfiles(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 0))
	answers := map[uint32]int{}
	try := func(name string, p *specs.LinuxSeccomp, goarch string, times int) {
		f := compileFor(t, p, goarch)
		for range times {
			c := randomCall(r, p, goarch)
			got, err := f.run(c)
			if err != nil {
				t.Fatalf("%s on %s: %v", name, goarch, err)
			}
			answers[got]++
			if want := want(t, p, goarch, c); got != want {
				b, _ := json.Marshal(p)
				t.Fatalf("%s on %s: call %+v is answered %#x, want %#x\n%s", name, goarch, c, got, want, b)
			}
		}
	}
	for i := range 150 {
		p := randomProfile(r)
		for goarch := range abis {
			try(fmt.Sprintf("profile %d", i), p, goarch, 100)
		}
	}
	try("containerd's default", defaultProfile(), native, 5000)
	try("containerd's default", defaultProfile("CAP_SYS_ADMIN", "CAP_SYS_PTRACE"), native, 5000)
	if len(answers) < 100 {
		t.Errorf("%d different answers were seen: the calls are not near what the profiles say", len(answers))
	}
}

func TestDefaultProfileIsShort(t *testing.T) {
	f := compileFor(t, defaultProfile(), native)
	if n := len(f.Program) / InstructionSize; n > 800 {
		t.Errorf("%d instructions", n)
	}
	for call, want := range map[string]bool{"read": true, "clone": true, "execve": true, "mount": false, "no_such": false} {
		if f.Allows(call) != want {
			t.Errorf("%s: %t, want %t", call, !want, want)
		}
	}
	if f.Allows("clone", unix.CLONE_NEWUSER) {
		t.Error("a user namespace may be made")
	}
}

func TestRejectedProfiles(t *testing.T) {
	big := uint(1 << 16)
	syscall := func(s specs.LinuxSyscall) func(*specs.LinuxSeccomp) {
		return func(p *specs.LinuxSeccomp) { p.Syscalls = append(p.Syscalls, s) }
	}
	for field, change := range map[string]func(*specs.LinuxSeccomp){
		"defaultAction":    func(p *specs.LinuxSeccomp) { p.DefaultAction = "" },
		"listenerPath":     func(p *specs.LinuxSeccomp) { p.ListenerPath = "/run/x" },
		"listenerMetadata": func(p *specs.LinuxSeccomp) { p.ListenerMetadata = "x" },
		"architectures[0]": func(p *specs.LinuxSeccomp) { p.Architectures = []specs.Arch{"SCMP_ARCH_X"} },
		"flags[0]": func(p *specs.LinuxSeccomp) {
			p.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagWaitKillableRecv}
		},
		"syscalls[0].action":          syscall(specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActNotify}),
		"syscalls[0].names":           syscall(specs.LinuxSyscall{Names: []string{""}, Action: specs.ActAllow}),
		"syscalls[0].args[0].index":   syscall(specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}}),
		"syscalls[0].args[0].op":      syscall(specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: "=="}}}),
		"syscalls[0].action errnoRet": syscall(specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActErrno, ErrnoRet: &big}),
	} {
		p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		change(p)
		_, err := Compile(p)
		var e *Error
		if !errors.As(err, &e) || e.Field != field && e.Field+" errnoRet" != field {
			t.Errorf("%s: error %v, want one of this field", field, err)
		}
	}
	if _, err := compile(&specs.LinuxSeccomp{DefaultAction: specs.ActErrno}, "riscv64"); err == nil {
		t.Error("a profile was compiled for a processor without a table")
	}
	long := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
	for i := range 3000 {
		long.Syscalls = append(long.Syscalls, specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Value: uint64(i), Op: specs.OpEqualTo}}})
	}
	if _, err := Compile(long); err == nil {
		t.Error("a program was made that the kernel does not take")
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		flags []specs.LinuxSeccompFlag
		want  uint64
	}{
		{nil, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW},
		{[]specs.LinuxSeccompFlag{}, 0},
		{[]specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagLog}, unix.SECCOMP_FILTER_FLAG_LOG},
	} {
		f, err := Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: c.flags})
		if err != nil || f.Flags != c.want {
			t.Errorf("%v: %+v, %v, want %#x", c.flags, f, err, c.want)
		}
	}
}

// A profile is compiled once.
func TestCompileOnce(t *testing.T) {
	p := defaultProfile()
	one, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	p.Syscalls = slices.Clone(p.Syscalls)
	if two, err := Compile(p); err != nil || two != one {
		t.Errorf("compiled again: %v", err)
	}
	for i := range maxCached {
		errno := uint(i)
		if _, err := Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &errno}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(filters.byHash); n > maxCached {
		t.Errorf("%d filters are kept", n)
	}
}

func BenchmarkCompile(b *testing.B) {
	p := defaultProfile()
	for b.Loop() {
		compileFor(b, p, native)
	}
}

func BenchmarkCached(b *testing.B) {
	p := defaultProfile()
	for b.Loop() {
		if _, err := Compile(p); err != nil {
			b.Fatal(err)
		}
	}
}
