package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// diary is what components did, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) component(name string, mods ...func(*component)) component {
	c := component{
		name: name,
		run: func(ctx context.Context) error {
			d.add("run %s", name)
			<-ctx.Done()
			d.add("stopped %s", name)
			return ctx.Err()
		},
		ready: func(context.Context) error {
			time.Sleep(time.Second)
			d.add("ready %s", name)
			return nil
		},
	}
	for _, m := range mods {
		m(&c)
	}
	return c
}

func TestPhasesStartInOrderAndStopBackwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancel(t.Context())
		drained := func(c *component) {
			c.drain = func(context.Context) error { d.add("drained %s", c.name); return nil }
		}
		done := make(chan error, 1)
		go func() {
			phases := []phase{{"one", []component{d.component("a")}}, {"two", []component{d.component("b", drained)}}}
			done <- runPhases(ctx, phases, func() { d.add("started") }, slog.New(slog.DiscardHandler))
		}()
		time.Sleep(10 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := []string{"run a", "ready a", "started", "run b", "ready b", "started", "drained b", "stopped b", "stopped a"}
		if !slices.Equal(d.lines, want) {
			t.Fatalf("got %q, want %q", d.lines, want)
		}
	})
}

func TestComponentThatEndsEndsTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		dies := func(c *component) {
			c.run = func(context.Context) error { time.Sleep(5 * time.Second); return errors.New("broken") }
		}
		err := runPhases(t.Context(), []phase{{"one", []component{d.component("a"), d.component("b", dies)}}}, func() {}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "b ended: broken") {
			t.Fatalf("got %v", err)
		}
		if !slices.Contains(d.lines, "stopped a") {
			t.Fatal("the other component was not stopped")
		}
	})
}

func TestComponentThatIsNotReadyEndsTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		fails := func(c *component) { c.ready = func(context.Context) error { return errors.New("no room") } }
		err := runPhases(t.Context(), []phase{
			{"one", []component{d.component("a")}}, {"two", []component{d.component("b", fails)}}, {"three", []component{d.component("c")}},
		}, func() {}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "b: no room") {
			t.Fatalf("got %v", err)
		}
		if slices.Contains(d.lines, "run c") || !slices.Contains(d.lines, "stopped a") {
			t.Fatalf("got %q", d.lines)
		}
	})
}

func TestComponentThatDoesNotStopIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		deaf := component{name: "deaf", run: func(context.Context) error { <-release; return nil }}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if err := runPhases(ctx, []phase{{"one", []component{deaf}}}, func() {}, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != stopLimit {
			t.Fatalf("waited %s in virtual time, want the limit %s", took, stopLimit)
		}
		close(release)
	})
}

func TestSecondAgentOnOneRootIsRefused(t *testing.T) {
	root := t.TempDir()
	unlock, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockRoot(root); err == nil || !strings.Contains(err.Error(), "another agent uses it (pid ") {
		t.Fatalf("got %v", err)
	}
	unlock()
	again, err := lockRoot(root)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}

// A process that is killed while it starts another leaves a child that has its files, and so its lock, for a moment.
func TestLockOfAKilledAgentIsWaitedFor(t *testing.T) {
	root := t.TempDir()
	killed := exec.Command("true")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	f, err := lock(filepath.Join(root, "berth.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Name(), fmt.Appendf(nil, "%d\n", killed.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "0.2")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	unlock, err := lockRoot(root)
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestSecondAgentOnOneCgroupRootIsRefused(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "locks")
	unlock, err := lockCgroups(folder, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"", "/", "//"} {
		if _, err := lockCgroups(folder, root); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("cgroup root /: another agent uses it (pid %d); give this one its own --cgroup-root", os.Getpid())) {
			t.Errorf("%q: got %v", root, err)
		}
	}
	other, err := lockCgroups(folder, "/a/b")
	if err != nil {
		t.Fatalf("another root: %v", err)
	}
	unlock()
	other()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	again, err := lockCgroups(folder, "/")
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}

// Agents that come and go, each of which removes the file when it leaves: one of them has it at a time.
func TestOneCgroupLockAtATime(t *testing.T) {
	folder := t.TempDir()
	var have atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				unlock, err := lockCgroups(folder, "/")
				if err != nil {
					if !strings.Contains(err.Error(), "another agent uses it") {
						t.Error(err)
					}
					continue
				}
				if have.Add(1) > 1 {
					t.Error("two have the lock")
				}
				have.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
}

func TestConfigIsValidated(t *testing.T) {
	err := (&Config{RootDir: "relative", RunDir: "/run/x/", PodLogsDir: "/logs", NodeName: "UPPER"}).Validate()
	for _, want := range []string{`root directory "relative"`, `run directory "/run/x/"`, `node name "UPPER"`, "no logger"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// What cannot be done before the end is told, though the end was asked for.
func TestDrainThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		left := errors.New("something is left")
		c := component{name: "pods", run: waitDone, drain: func(context.Context) error { return left }}
		if err := runPhases(ctx, []phase{{"one", []component{c}}}, func() {}, slog.New(slog.DiscardHandler)); !errors.Is(err, left) {
			t.Errorf("got %v", err)
		}
	})
}
