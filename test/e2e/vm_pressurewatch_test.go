//go:build e2e && vm

package e2e

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/pressure"
)

// As TestPressureWatch, by memory.high.
func TestVMPressureWatch(t *testing.T) {
	needsUnified(t)
	checkPressureWatch(t)
}

// What an agent that was killed left in memory.high is taken away, also when nothing is watched; a
// value of somebody else stays.
func TestVMPressureWatchKilled(t *testing.T) {
	needsUnified(t)
	h := newHogs(t)
	high := filepath.Join(h.dir, "memory.high")
	run := func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = pressure.New(pressure.Config{Proc: "/proc", Cgroups: cgroupMount, Pods: func() string { return h.path }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}).Run(ctx)
	}
	must(t, os.WriteFile(high, []byte("104857600"), 0))
	run()
	wantFile(t, high, "104857600")
	must(t, unix.Setxattr(h.dir, "trusted.berth.high", []byte("104857600"), 0))
	run()
	wantFile(t, high, "max")
}
