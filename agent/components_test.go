package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mount "k8s.io/mount-utils"

	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri/critest"
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

func (d *diary) milestones() milestones {
	return milestones{started: func() { d.add("started") }, failed: func(err error) { d.add("failed: %v", err) }}
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
			done <- runPhases(ctx, phases, d.milestones(), slog.New(slog.DiscardHandler))
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
		err := runPhases(t.Context(), []phase{{"one", []component{d.component("a"), d.component("b", dies)}}}, (&diary{}).milestones(), slog.New(slog.DiscardHandler))
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
		}, d.milestones(), slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "b: no room") {
			t.Fatalf("got %v", err)
		}
		told := slices.Index(d.lines, "failed: b: no room")
		if slices.Contains(d.lines, "run c") || told < 0 || slices.Index(d.lines, "stopped a") < told {
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
		if err := runPhases(ctx, []phase{{"one", []component{deaf}}}, (&diary{}).milestones(), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != stopLimit {
			t.Fatalf("waited %s in virtual time, want the limit %s", took, stopLimit)
		}
		close(release)
	})
}

func TestConfigIsValidated(t *testing.T) {
	err := (&Config{RootDir: "relative", RunDir: "/run/x/", PodLogsDir: "/logs", NodeName: "UPPER", CgroupRoot: "a/../b"}).Validate()
	for _, want := range []string{`root directory "relative"`, `run directory "/run/x/"`, `node name "UPPER"`, `cgroup root "a/../b"`, "no logger"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// The cgroup root may be named without its slash, as a kubelet takes it.
func TestCgroupRootWithoutSlash(t *testing.T) {
	dir := t.TempDir()
	a, err := Build(Config{
		RootDir: dir, RunDir: filepath.Join(dir, "run"), PodLogsDir: filepath.Join(dir, "logs"), NodeName: "node", CgroupRoot: "pods/", Log: slog.New(slog.DiscardHandler),
		Environment: Environment{DialCRI: critest.New().Dialer(), Cgroups: noCgroups{}, Mounter: mount.NewFakeMounter(nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.deps.cfg.CgroupRoot; got != "/pods" {
		t.Errorf("the cgroup root is %q", got)
	}
}

// What cannot be done before the end is told, though the end was asked for.
func TestDrainThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		left := errors.New("something is left")
		c := component{name: "pods", run: waitDone, drain: func(context.Context) error { return left }}
		if err := runPhases(ctx, []phase{{"one", []component{c}}}, (&diary{}).milestones(), slog.New(slog.DiscardHandler)); !errors.Is(err, left) {
			t.Errorf("got %v", err)
		}
	})
}

// A start that fails is an event of the node, which is kept for those who ask why.
func TestSetupThatFails(t *testing.T) {
	dir := t.TempDir()
	a, err := Build(Config{
		RootDir: dir, RunDir: filepath.Join(dir, "run"), PodLogsDir: filepath.Join(dir, "logs"), NodeName: "node", Log: slog.New(slog.DiscardHandler),
		Environment: Environment{DialCRI: critest.New().Dialer(), Cgroups: noCgroups{}, Mounter: mount.NewFakeMounter(nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	fails := component{name: "images", run: waitDone, ready: func(context.Context) error { return errors.New("no room") }}
	if err := a.run(t.Context(), []phase{{"one", []component{fails}}}); err == nil {
		t.Error("the agent did not end")
	}
	var got []string
	for _, e := range a.deps.events.List() {
		messagestest.SawEvent(e.Reason, e.Message)
		got = append(got, e.InvolvedObject.Kind+" "+e.Type+" "+e.Reason+": "+e.Message)
	}
	if want := "Node Warning KubeletSetupFailed: images: no room"; !slices.Contains(got, want) {
		t.Errorf("got %q, want %q among them", got, want)
	}
}
