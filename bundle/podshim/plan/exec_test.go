package plan

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/wire"
)

func TestDescribe(t *testing.T) {
	p, err := New(sample())
	if err != nil {
		t.Fatal(err)
	}
	const unable = "unable to start container process: exec: "
	for _, c := range []struct {
		program string
		failed  int32
		why     syscall.Errno
		want    string
	}{
		{"/bin/sh", 0, syscall.ENOENT, `step 0: join cgroup s0="/sys/fs/cgroup/memory/pods/one/cgroup.procs": no such file or directory`},
		{"/bin/sh", 1000, syscall.EPERM, "step 1000: operation not permitted"},
		{"/bin/sh", wire.ReasonNone, syscall.EBUSY, "device or resource busy"},
		{"/bin/sh", wire.ReasonSetup, syscall.EMFILE, "set up the process: too many open files"},
		{"/bin/sh", wire.ReasonExec, syscall.ENOENT, unable + `"/bin/sh": stat /bin/sh: no such file or directory`},
		{"/bin/sh", wire.ReasonExec, syscall.EACCES, unable + `"/bin/sh": permission denied`},
		{"sh", wire.ReasonExec, syscall.ENOENT, unable + `"sh": executable file not found in $PATH`},
		{"/bin/sh", wire.ReasonDied, syscall.EPIPE, "the process ended before it was ready"},
		{"/bin/sh", wire.ReasonDied, syscall.ESRCH, "the container has ended"},
		{"/bin/sh", wire.ReasonBadPlan, syscall.EINVAL, "the pod shim does not understand the plan"},
	} {
		p.argv = []string{c.program}
		if got := p.Describe(c.failed, c.why); got != c.want {
			t.Errorf("%d: %q, want %q", c.failed, got, c.want)
		}
	}
	if got := (*Plan)(nil).Describe(3, syscall.EPERM); got != "step 3: operation not permitted" {
		t.Errorf("without a plan: %q", got)
	}
}

// The steps of an exec: those that need files of the host precede the entry into the container, and
// privileges are dropped after it.
func TestDescribeOfAnotherProc(t *testing.T) {
	p, err := New(shared())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(p.steps, func(s step) bool { return s.op == opEnterNamespaces })
	const want = "the container whose processes are to be shared shows others at its /proc"
	if got := p.Describe(int32(at), syscall.ESTALE); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDescribeOfATargetThatHasTerminated(t *testing.T) {
	p, err := New(targetInUserNamespace())
	if err != nil {
		t.Fatal(err)
	}
	at := int32(slices.IndexFunc(p.steps, func(s step) bool { return s.op == opMountProcfs }))
	for why, want := range map[syscall.Errno]string{
		syscall.ENOMEM: "the container whose PID namespace is to be shared has terminated",
		syscall.ESRCH:  "the container whose PID namespace is to be shared has terminated",
		syscall.EPERM:  fmt.Sprintf("step %d: %s: operation not permitted", at, p.steps[at]),
	} {
		if got := p.Describe(at, why); got != want {
			t.Errorf("%s: %q, want %q", why, got, want)
		}
	}
}

func TestNewExec(t *testing.T) {
	score := 321
	process := &specs.Process{
		Args: []string{"sh"}, Cwd: "/tmp", Terminal: true, ConsoleSize: &specs.Box{Height: 3, Width: 4}, OOMScoreAdj: &score, NoNewPrivileges: true,
		User: specs.User{UID: 1, GID: 2}, Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}},
	}
	p, err := NewExec(process, []Cgroup{{"cpu", "/cg/cpu"}}, Confinement{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.steps {
		got = append(got, s.String())
	}
	want := []string{
		`join cgroup s0="/cg/cpu/cgroup.procs"`, `write s0="self/oom_score_adj" s1="321"`, "join new keyring", "enter namespaces n0=0x22020000", "open terminal n0=0x3 n1=0x4", `change directory s0="/tmp"`,
		"control process n0=0x8 n1=0x1", "set user and groups n0=0x1 n1=0x2 n2=0x1", "set capabilities", "prepare program", "control process n0=0x26 n1=0x1",
	}
	if !slices.Equal(got, want) || p.stepsBeforeStart != len(want) {
		t.Errorf("%d of\n%q, want all of\n%q", p.stepsBeforeStart, got, want)
	}
	for field, change := range map[string]func(*specs.Process){
		"process.args":                  func(p *specs.Process) { p.Args = nil },
		"process.cwd":                   func(p *specs.Process) { p.Cwd = "tmp" },
		"process.rlimits[0]":            func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_X"}} },
		"process.scheduler":             func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedOther} },
		"process.consoleSize":           func(p *specs.Process) { p.ConsoleSize = &specs.Box{Height: 1 << 16} },
		"process.capabilities.bounding": func(p *specs.Process) { p.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_X"}} },
	} {
		other := *process
		change(&other)
		var r *FieldError
		if _, err := NewExec(&other, nil, Confinement{}); !errors.As(err, &r) || r.Field != field {
			t.Errorf("%s: %v, want it refused by this name", field, err)
		}
	}
}
