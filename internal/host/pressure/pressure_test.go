package pressure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree writes files below a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Which means there are follows from what the kernel shows.
func TestMeans(t *testing.T) {
	v1 := map[string]string{"memory/" + controlFile: ""}
	v2 := map[string]string{controllersFile: "memory"}
	psi := map[string]string{"pressure/memory": ""}
	for _, tc := range []struct {
		what                  string
		proc, cgroups         map[string]string
		pods                  string
		thresholds, notifiers int
		first                 any
	}{
		{"nothing", nil, nil, "/kubepods", 0, 0, nil},
		{"version 1", nil, v1, "/kubepods", 2, 0, &usageThreshold{}},
		{"version 1 without pods", nil, v1, "", 1, 0, &usageThreshold{}},
		{"version 1 with pressure", psi, v1, "/kubepods", 2, 1, &usageThreshold{}},
		{"version 2", nil, v2, "/kubepods", 1, 1, &memoryHigh{}},
		{"version 2 with pressure", psi, v2, "/kubepods", 1, 2, &memoryHigh{}},
		{"version 2 without pods", psi, v2, "", 0, 1, nil},
	} {
		w := New(Config{Proc: tree(t, tc.proc), Cgroups: tree(t, tc.cgroups), Pods: func() string { return tc.pods }})
		thresholds, notifiers := w.thresholds(), w.notifications()
		if len(thresholds) != tc.thresholds || len(notifiers) != tc.notifiers {
			t.Errorf("%s: %d wires and %d sirens, want %d and %d", tc.what, len(thresholds), len(notifiers), tc.thresholds, tc.notifiers)
			continue
		}
		if tc.first != nil && fmt.Sprintf("%T", thresholds[0].threshold) != fmt.Sprintf("%T", tc.first) {
			t.Errorf("%s: %T, want %T", tc.what, thresholds[0].threshold, tc.first)
		}
	}
}

// control is a cgroup.event_control that hands on what is written to it.
func control(t *testing.T, path string) <-chan [3]int64 {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	out := make(chan [3]int64)
	go func() {
		b := make([]byte, 100)
		for {
			n, err := f.Read(b)
			if err != nil {
				return
			}
			var said [3]int64
			if _, err := fmt.Sscan(string(b[:n]), &said[0], &said[1], &said[2]); err != nil {
				t.Error(err)
			}
			out <- said
		}
	}()
	return out
}

// A Watch opens nothing before Arm, sets thresholds in the kernel, wakes on its events, and leaves
// nothing open.
func TestRun(t *testing.T) {
	cgroups := tree(t, map[string]string{"memory/" + usageFile: "1073741824\n", "memory/kubepods/" + usageFile: "536870912\n"})
	root, pods := control(t, filepath.Join(cgroups, "memory", controlFile)), control(t, filepath.Join(cgroups, "memory", "kubepods", controlFile))
	w := New(Config{Proc: t.TempDir(), Cgroups: cgroups, Pods: func() string { return "/kubepods" }, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	w.Arm(gi, 2*gi)
	machine := <-root
	if machine[2] != 2*gi {
		t.Errorf("the machine's threshold: %d, want %d", machine[2], 2*gi)
	}
	ofPods := <-pods
	if want := gi/2 + 2*gi; ofPods[2] != want {
		t.Errorf("the pods' threshold: %d, want %d", ofPods[2], want)
	}
	for range 2 {
		if _, err := unix.Write(int(ofPods[0]), []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		<-w.Wake()
		w.Arm(gi, 2*gi)
		ofPods = <-pods // the machine's stays
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	for _, fd := range []int64{machine[0], ofPods[0]} {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && strings.Contains(to, "eventfd") {
			t.Errorf("descriptor %d is open: %s", fd, to)
		}
	}
	w.Arm(gi, gi) // nobody listens
	if got := w.Coverage(); got != (Coverage{}) {
		t.Error("it watches after its end")
	}
}

// Cgroup version 1 reports all memory of the machine, version 2 that of pods.
func TestCoverage(t *testing.T) {
	for version, want := range map[string]bool{"1": true, "2": false} {
		cgroups := t.TempDir()
		if version == "2" {
			if err := os.WriteFile(filepath.Join(cgroups, controllersFile), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := New(Config{Proc: t.TempDir(), Cgroups: cgroups, Pods: func() string { return "" }})
		w.watching.Store(true)
		w.stalls.Store(true)
		if got := w.Coverage(); got != (Coverage{Pods: true, Others: want, Stalls: true}) {
			t.Errorf("version %s: covers %+v, want pods, stalls, and others: %v", version, got, want)
		}
	}
}

// Where the kernel offers nothing, that is said once, and nothing happens.
func TestRunWithoutMeans(t *testing.T) {
	var log strings.Builder
	w := New(Config{Proc: t.TempDir(), Cgroups: t.TempDir(), Pods: func() string { return "/kubepods" }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	w.Arm(gi, gi)
	cancel()
	_ = w.Run(ctx)
	if err := w.serve(t.Context()); err != nil {
		t.Error(err)
	}
	if got := w.Coverage(); got != (Coverage{}) {
		t.Error("it watches without means")
	}
	if n := strings.Count(log.String(), "level=INFO"); n == 0 || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("said:\n%s", &log)
	}
}

// A Watch opens nothing if Arm is never called.
func TestRunNeverArmed(t *testing.T) {
	w := New(Config{Proc: "nowhere", Cgroups: "nowhere", Log: slog.New(slog.DiscardHandler), Pods: func() string { return "" }})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if w.eventFD.descriptor() != notOpen {
		t.Error("something is open")
	}
}
