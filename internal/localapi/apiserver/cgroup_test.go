package apiserver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// cages are the cgroups of children: what was started in them, and what became of them.
type cages struct {
	mu       sync.Mutex
	pids     []int         // guarded by mu; of the children that were started
	left     map[int]error // guarded by mu; what signalling a child says when its cgroup is removed
	exceeded error         // of all
}

func (c *cages) confine() (Cgroup, error) { return &cage{cages: c}, nil }

func (c *cages) started() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]int(nil), c.pids...)
}

// cage is one cgroup.
type cage struct {
	*cages
	pid int // 0: nothing was started
}

func (c *cage) Start(cmd *exec.Cmd) error {
	if unix.Gettid() == unix.Getpid() {
		return errors.New("the first thread of the process would stay in the cgroup")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid = cmd.Process.Pid
	c.pids = append(c.pids, c.pid)
	return nil
}

func (c *cage) Exceeded() error { return c.exceeded }

func (c *cage) Remove(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		c.left = map[int]error{}
	}
	c.left[c.pid] = nil
	if c.pid != 0 {
		c.left[c.pid] = syscall.Kill(c.pid, 0)
	}
	return nil
}

// full is a cgroup that takes no process.
type full struct{ noCgroup }

func (full) Start(*exec.Cmd) error { return errors.New("the cgroup is full") }

func TestCgroupGoesAfterItsChild(t *testing.T) {
	f := newFixture(t, "n", nil)
	f.do("POST", "/die", "")
	f.do("GET", "/headers", "")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f.cages.mu.Lock()
	defer f.cages.mu.Unlock()
	for _, pid := range f.cages.pids {
		if err, removed := f.cages.left[pid]; !removed || !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the cgroup of child %d is removed: %t, after its end: %v", pid, removed, err)
		}
	}
	if len(f.cages.pids) != 2 || len(f.cages.left) != 2 {
		t.Errorf("children %v, cgroups that were removed %v: want two each", f.cages.pids, f.cages.left)
	}
}

func TestCgroupGoesWithoutAChild(t *testing.T) {
	f := newFixture(t, "n", func(c *Config) { c.Program = "/etc/passwd" })
	f.do("GET", "/headers", "")
	f.cages.mu.Lock()
	defer f.cages.mu.Unlock()
	if _, removed := f.cages.left[0]; !removed {
		t.Error("the cgroup is left of a child that could not be started")
	}
}

func TestLimitIsTold(t *testing.T) {
	f := newFixture(t, "n", nil)
	f.cages.exceeded = errors.New("it used more than 256 MiB of memory")
	for range healthDeaths {
		answer, body := f.do("POST", "/die", "")
		f.expectUnavailable(answer, body, "the API writer ended: exit status 4: it used more than 256 MiB of memory")
	}
	if err := f.Health(); err == nil || !strings.Contains(err.Error(), "256 MiB") {
		t.Errorf("Health = %v, want the limit", err)
	}
}

func TestChildWithoutACgroup(t *testing.T) {
	var log bytes.Buffer
	f := newFixture(t, "n", func(c *Config) {
		c.Confine = func() (Cgroup, error) { return nil, errors.New("no rights") }
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 2 {
		f.do("POST", "/die", "")
	}
	if answer, body := f.do("POST", "/write/o", "v"); answer.StatusCode != 200 {
		t.Errorf("answer %s: %s", answer.Status, body)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if said := log.String(); strings.Count(said, "no rights") != 1 {
		t.Errorf("want one line that says why there is no cgroup:\n%s", said)
	}
}
