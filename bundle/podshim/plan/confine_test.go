package plan

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/wire"
)

// words returns the names of steps.
func words(steps []step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.op.String())
	}
	return out
}

func filtered(denied ...string) *specs.LinuxSeccomp {
	s := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	if len(denied) > 0 {
		s.Syscalls = []specs.LinuxSyscall{{Names: denied, Action: specs.ActErrno}}
	}
	return s
}

// A filter is loaded before capabilities are dropped, or with no-new-privileges as the last step.
func TestWhenTheFilterIsLoaded(t *testing.T) {
	c := sample()
	c.Spec.Linux.Seccomp = filtered()
	for noNew, want := range map[bool]string{
		true:  "set user and groups, set capabilities, control process, prepare program, control process, load seccomp filter",
		false: "set user and groups, set capabilities, prepare program, set capabilities, load seccomp filter, set capabilities, control process",
	} {
		c.Spec.Process.NoNewPrivileges = noNew
		p, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(words(p.steps[p.stepsBeforeStart+1:]), ", "); got != want {
			t.Errorf("no-new-privileges %t: %s, want %s", noNew, got, want)
		}
		confined, err := Confine(c.Spec)
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewExec(c.Spec.Process, nil, confined)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(words(e.steps), ", "); !strings.HasSuffix(got, want) || e.stepsBeforeStart != len(e.steps) {
			t.Errorf("exec, no-new-privileges %t: %d of %s", noNew, e.stepsBeforeStart, got)
		}
		if _, err := e.Bytes(wire.Version); err != nil {
			t.Error(err)
		}
		// Before that, the process has one more capability, and none is ambient.
		for i, s := range p.steps[:len(p.steps)-1] {
			if s.op == opSetCapabilities && i > p.stepsBeforeStart && s.numbers[1] != 0x1|capSysAdmin && s.numbers[1] != 0x1 {
				t.Errorf("step %s", s)
			}
		}
	}
}

// If the profile denies what starting an exec needs, the filter is loaded afterwards; if a process
// of the container could trace the exec, it is rejected.
func TestLateFilterOfAnExec(t *testing.T) {
	spec := sample().Spec
	for _, denied := range []string{"clone", "exit_group", "setsid", "ioctl", "sendmsg", "read"} {
		spec.Linux.Seccomp = filtered(denied)
		confined, err := Confine(spec)
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewExec(spec.Process, nil, confined)
		if err != nil || p.steps[p.stepsBeforeStart].op != opSeccompFilter {
			t.Errorf("%s: %d of %v: %v", denied, p.stepsBeforeStart, words(p.steps), err)
		}
		process := *spec.Process
		caps := *process.Capabilities
		process.Capabilities = &caps
		caps.Bounding = append(slices.Clone(caps.Bounding), "CAP_SYS_PTRACE")
		var r *FieldError
		if _, err := NewExec(&process, nil, confined); !errors.As(err, &r) || r.Field != "linux.seccomp" {
			t.Errorf("%s, with CAP_SYS_PTRACE: %v", denied, err)
		}
	}
}

func TestRejectedProfile(t *testing.T) {
	c := sample()
	// runc supports the first, and no runtime the second.
	for action, advice := range map[specs.LinuxSeccompAction]bool{specs.ActNotify: true, "SCMP_ACT_X": false} {
		c.Spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: action}
		var r *FieldError
		if _, err := New(c); !errors.As(err, &r) || r.Field != "linux.seccomp.defaultAction" || strings.Contains(err.Error(), "handler of runc") != advice {
			t.Errorf("%s: %v", action, err)
		}
	}
}

func TestRlimits(t *testing.T) {
	c := sample()
	limit := func(kind string, soft, hard uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: kind, Soft: soft, Hard: hard}
	}
	c.Spec.Process.Rlimits = []specs.POSIXRlimit{limit("RLIMIT_CPU", 1, 2), limit("RLIMIT_RTTIME", 3, 1<<64-1)}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewExec(c.Spec.Process, nil, Confinement{})
	if err != nil {
		t.Fatal(err)
	}
	for name, steps := range map[string][]step{"container": p.steps, "exec": e.steps} {
		at := slices.IndexFunc(steps, func(s step) bool { return s.op == opRlimit })
		if at < 0 || steps[at].numbers != [4]uint64{0, 1, 2} || steps[at+1].numbers != [4]uint64{15, 3, 1<<64 - 1} || steps[at+2].op != opPivotRoot && steps[at+2].op != opEnterNamespaces {
			t.Errorf("%s: limits are step %d of %v", name, at, steps)
		}
	}
	for _, wrong := range [][]specs.POSIXRlimit{
		{limit("RLIMIT_CORE", 0, 0), limit("RLIMIT_X", 1, 1)}, {limit("RLIMIT_CORE", 0, 0), limit("RLIMIT_CORE", 0, 0)}, {limit("RLIMIT_CORE", 0, 0), limit("RLIMIT_CPU", 2, 1)},
	} {
		c.Spec.Process.Rlimits = wrong
		var r *FieldError
		if _, err := New(c); !errors.As(err, &r) || r.Field != "process.rlimits[1]" {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}
