package tuning

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// lines is a log without times.
func lines(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// procWith makes a folder that looks like /proc, with these settings.
func procWith(t *testing.T, settings map[string]string) Host {
	t.Helper()
	h := Host{Proc: t.TempDir()}
	for name, value := range settings {
		file := h.sysctl(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestKernel(t *testing.T) {
	good := map[string]string{
		"vm.overcommit_memory": "1", "vm.panic_on_oom": "0", "kernel.panic": "10", "kernel.panic_on_oops": "1",
		"kernel.keys.root_maxkeys": "1000000", "kernel.keys.root_maxbytes": "25000000",
	}
	with := func(changes ...string) map[string]string {
		out := map[string]string{}
		for name, value := range good {
			out[name] = value
		}
		for _, c := range changes {
			name, value, _ := strings.Cut(c, "=")
			if out[name] = value; value == "" {
				delete(out, name)
			}
		}
		return out
	}
	for _, c := range []struct {
		name   string
		policy KernelPolicy
		is     map[string]string
		want   map[string]string // afterwards
		log    []string          // parts of each line
		err    []string          // parts of the error
	}{
		{name: "nothing is asked for", policy: LeaveKernel, is: with("kernel.panic=0"), want: with("kernel.panic=0")},
		{name: "as it should be", policy: SetKernel, is: good, want: good},
		{name: "demanded, and so", policy: DemandKernel, is: good, want: good},
		{
			name: "set", policy: SetKernel, is: with("kernel.panic=0", "vm.overcommit_memory=2"), want: good,
			log: []string{"[vm.overcommit_memory from 2 to 1 kernel.panic from 0 to 10]"},
		},
		{
			name: "one is not there", policy: SetKernel, is: with("kernel.panic=0", "kernel.keys.root_maxkeys="), want: with("kernel.keys.root_maxkeys="),
			log: []string{"[kernel.panic from 0 to 10]", "kernel/keys/root_maxkeys: no such file"},
		},
		{
			name: "demanded", policy: DemandKernel, is: with("kernel.panic=0", "vm.overcommit_memory=2"), want: with("kernel.panic=0", "vm.overcommit_memory=2"),
			err: []string{"vm.overcommit_memory is 2, and must be 1: set it (sysctl -w vm.overcommit_memory=1", "kernel.panic is 0, and must be 10"},
		},
		{
			name: "demanded, and not there", policy: DemandKernel, is: with("kernel.panic_on_oops="), want: with("kernel.panic_on_oops="),
			err: []string{"kernel.panic_on_oops must be 1, and cannot be read"},
		},
		{
			name: "demanded, and no number", policy: DemandKernel, is: with("kernel.panic=x"), want: with("kernel.panic=x"),
			err: []string{"kernel.panic must be 10, and cannot be read"},
		},
	} {
		var log strings.Builder
		h := procWith(t, c.is)
		err := (&Tuner{Settings: Settings{Kernel: c.policy}, Machine: h, Log: lines(&log)}).Start()
		for _, part := range c.err {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error %v lacks %q", c.name, err, part)
			}
		}
		if err != nil && (c.err == nil || strings.Count(err.Error(), "\n") != len(c.err)-1) {
			t.Errorf("%s: %v", c.name, err)
		}
		got := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		if log.Len() == 0 {
			got = nil
		}
		if len(got) != len(c.log) {
			t.Errorf("%s: logs %q", c.name, got)
		}
		for i, part := range c.log {
			if i < len(got) && !strings.Contains(got[i], part) {
				t.Errorf("%s: %q lacks %q", c.name, got[i], part)
			}
		}
		after := map[string]string{}
		for name := range c.is {
			if b, err := os.ReadFile(h.sysctl(name)); err == nil {
				after[name] = strings.TrimSpace(string(b))
			}
		}
		if diff := cmp.Diff(c.want, after); diff != "" {
			t.Errorf("%s: settings (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestRaised(t *testing.T) {
	for _, c := range []struct {
		now, want unix.Rlimit
		n         uint64
	}{
		{unix.Rlimit{Cur: 1024, Max: 4096}, unix.Rlimit{Cur: 1_000_000, Max: 1_000_000}, 1_000_000},
		{unix.Rlimit{Cur: 1024, Max: 4096}, unix.Rlimit{Cur: 2000, Max: 4096}, 2000},
		{unix.Rlimit{Cur: 4096, Max: 4096}, unix.Rlimit{Cur: 4096, Max: 4096}, 100},  // never lowered
		{unix.Rlimit{Cur: 4095, Max: 4096}, unix.Rlimit{Cur: 4095, Max: 4096}, 4096}, // as Go does
		{unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, 1_000_000},
	} {
		if got, changed := raised(c.now, c.n); got != c.want || changed != (c.now != c.want) {
			t.Errorf("%d of %v: got %v, %v, want %v", c.n, c.now, got, changed, c.want)
		}
	}
	if err := (Host{}).RaiseOpenFiles(1); err != nil {
		t.Errorf("what is so already: %v", err)
	}
}

func TestOOMScore(t *testing.T) {
	h := procWith(t, nil)
	score := -999
	var log strings.Builder
	tuner := &Tuner{Settings: Settings{OOMScore: &score}, Machine: h, Log: lines(&log)}
	if err := tuner.Start(); err != nil || !strings.Contains(log.String(), "oomScoreAdj is not set") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("where it cannot be set: %v, %s", err, log.String())
	}
	file := filepath.Join(h.Proc, "self", "oom_score_adj")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("1000\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	log.Reset()
	if err := tuner.Start(); err != nil || log.Len() > 0 {
		t.Errorf("%v, %s", err, log.String())
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != strconv.Itoa(score) {
		t.Errorf("the score is %q, %v", b, err)
	}
}

// fakeMachine has cgroups whose processes come and go.
type fakeMachine struct {
	Host
	strays  int   // processes that are in no cgroup
	stuck   error // why they stay
	noGroup error
	did     []string
	mu      sync.Mutex // guards strays and stuck while others gather
}

// change changes what the machine is.
func (m *fakeMachine) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// said is text that several goroutines write and read.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// take returns what was said since the last call.
func (s *said) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.text.Reset()
	return s.text.String()
}

func (m *fakeMachine) RaiseOpenFiles(n uint64) error {
	m.did = append(m.did, fmt.Sprintf("files %d", n))
	return errors.New("not permitted")
}

func (m *fakeMachine) Group(cgroup string) (Group, error) { return fakeGroup{m, cgroup}, m.noGroup }

type fakeGroup struct {
	m    *fakeMachine
	name string
}

func (g fakeGroup) Join() error {
	g.m.did = append(g.m.did, "join "+g.name)
	return g.m.stuck
}

func (g fakeGroup) Gather() (int, error) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if g.m.stuck != nil {
		return 0, g.m.stuck
	}
	n := g.m.strays
	g.m.strays = 0
	return n, nil
}

func TestStart(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings Settings
		machine  *fakeMachine
		did, log []string
	}{
		{name: "nothing"},
		{name: "all", settings: Settings{OpenFiles: 100, AgentCgroup: "/kube"}, did: []string{"files 100", "join /kube"}, log: []string{"maxOpenFiles is not reached"}},
		{
			name: "a cgroup that cannot be made", settings: Settings{AgentCgroup: "/kube"}, machine: &fakeMachine{noGroup: errors.New("read-only")},
			log: []string{"kubeletCgroups: the agent stays"},
		},
		{
			name: "a cgroup that takes no process", settings: Settings{AgentCgroup: "/kube"}, machine: &fakeMachine{stuck: errors.New("busy")},
			did: []string{"join /kube"}, log: []string{"kubeletCgroups: the agent stays"},
		},
	} {
		var log strings.Builder
		if c.machine == nil {
			c.machine = &fakeMachine{}
		}
		if err := (&Tuner{Settings: c.settings, Machine: c.machine, Log: lines(&log)}).Start(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.did, c.machine.did); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if strings.Count(log.String(), "\n") != len(c.log) {
			t.Errorf("%s: logs\n%s", c.name, log.String())
		}
		for _, part := range c.log {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%s: the log lacks %q", c.name, part)
			}
		}
	}
}

// Daemons are gathered at the start and each minute; an error is told when it is new.
func TestRunGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log said
		m := &fakeMachine{strays: 3}
		tuner := &Tuner{Settings: Settings{SystemCgroup: "/system"}, Machine: m, Log: lines(&log)}
		if !tuner.GathersDaemons() || (&Tuner{}).GathersDaemons() {
			t.Error("it gathers when it is told to, and only then")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tuner.Run(ctx) }()
		wait := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			text := log.take()
			if got := strings.Count(text, "\n"); want == "" && got != 0 || want != "" && (got != 1 || !strings.Contains(text, want)) {
				t.Errorf("want %q, got %s", want, text)
			}
		}
		wait(time.Second, "processes=3")
		m.change(func() { m.strays = 2 })
		wait(58*time.Second, "")
		wait(2*time.Second, "processes=2") // not at the moment of a look
		wait(10*time.Minute, "")
		m.change(func() { m.stuck = errors.New("busy") })
		wait(time.Hour, "busy")
		m.change(func() { m.stuck = nil })
		wait(time.Minute, "")
		m.change(func() { m.stuck = errors.New("busy") })
		wait(time.Minute, "busy")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
