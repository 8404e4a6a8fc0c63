package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
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
