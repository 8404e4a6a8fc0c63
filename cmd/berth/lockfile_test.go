package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	holder, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := lockFile(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("told to end while another has the lock: %v", err)
	}
	waiting, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lockFile(waiting, path) }()
	select {
	case err := <-done:
		t.Fatalf("locked a second time: %v", err)
	default:
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) { // not before it has opened the file, which the test's end removes
		t.Errorf("told to end while it waits for the lock: %v", err)
	}
	// Those that were told to end still stand in the line; they are this very process.
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLockContention(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := lockFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	ctx, err := cancelOnContention(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), errLockWanted) {
		t.Errorf("ended with %v", context.Cause(ctx))
	}
}
