//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/host/cgroups"
	"berth/internal/host/pressure"
)

// hogs is a cgroup of its own, in which no more than 512 MiB can be used.
type hogs struct {
	t         *testing.T
	path, dir string
	version   int
}

func newHogs(t *testing.T) *hogs {
	t.Helper()
	h := &hogs{t: t, path: fmt.Sprintf("/berth-e2e-hogs-%d", os.Getpid())}
	h.version, _ = cgroups.Detect()
	h.dir = filepath.Join(cgroupMount, "memory", h.path)
	limit := "memory.limit_in_bytes"
	if h.version == 2 {
		h.dir, limit = filepath.Join(cgroupMount, h.path), "memory.max"
	}
	must(t, os.Mkdir(h.dir, 0o755))
	t.Cleanup(func() {
		until(t, "the cgroup to go", func() bool { return os.Remove(h.dir) == nil })
	})
	must(t, os.WriteFile(filepath.Join(h.dir, limit), []byte("512M"), 0))
	return h
}

// take takes memory at once, and gives it back.
func (h *hogs) take(size string) {
	h.t.Helper()
	script := `echo 0 > "$1/cgroup.procs" && exec dd if=/dev/zero of=/dev/null bs="$2" count=1`
	if out, err := exec.Command("sh", "-c", script, "sh", h.dir, size).CombinedOutput(); err != nil {
		h.t.Fatalf("take %s: %v\n%s", size, err, out)
	}
}

// eventfds counts those that this process has open.
func eventfds(t *testing.T) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.Contains(to, "eventfd") {
			n++
		}
	}
	return n
}

// wired reports whether a wire lies on the cgroup.
func (h *hogs) wired(before int) bool {
	if h.version == 2 {
		b, err := os.ReadFile(filepath.Join(h.dir, "memory.high"))
		return err == nil && strings.TrimSpace(string(b)) != "max"
	}
	return eventfds(h.t) == before+2 // and the one that ends a wait
}

// The kernel tells when pods have taken what was left, each time that it is asked to, and not when
// they take less; what it was asked for goes with the watch.
func TestPressureWatch(t *testing.T) { checkPressureWatch(t) }

func checkPressureWatch(t *testing.T) {
	h := newHogs(t)
	before := eventfds(t)
	w := pressure.New(pressure.Config{
		Proc:    t.TempDir(), // without alarms, which ring by what others do, too
		Cgroups: cgroupMount, Pods: func() string { return h.path }, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for range 3 {
		w.Arm(math.MaxInt64, 100<<20)
		until(t, "the wire to lie", func() bool { return h.wired(before) })
		h.take("40M")
		select {
		case <-w.Wake():
			t.Fatal("woken, though less than what is left was taken")
		default:
		}
		h.take("200M")
		select {
		case <-w.Wake():
		case <-time.After(patience(10 * time.Second)):
			t.Fatal("not woken, though more than what is left was taken")
		}
		if h.wired(before) {
			t.Error("the wire lies where it was crossed")
		}
	}
	w.Arm(math.MaxInt64, 100<<20)
	until(t, "the wire to lie", func() bool { return h.wired(before) })
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("Run ended with %v", err)
	}
	if now := eventfds(t); now != before || h.wired(before) {
		t.Errorf("left behind: %d eventfds", now-before)
	}
}
