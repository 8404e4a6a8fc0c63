package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errLockWanted is the cancellation cause if another process opened the lock file
// (--exit-on-lock-contention).
var errLockWanted = errors.New("another process waits for the lock of --lock-file")

// lockFile waits for the lock on the file, which is released when the process exits. An agent that
// replaces another one starts after that one has exited.
func lockFile(ctx context.Context, path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("--lock-file %s: %w", path, err)
	}
	locked := make(chan error, 1)
	go func() { // flock cannot be interrupted; a shutdown leaks this goroutine
		for {
			if err := unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
				locked <- err
				return
			}
		}
	}()
	select {
	case err := <-locked:
		if err != nil {
			return fmt.Errorf("--lock-file %s: %w", path, err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cancelOnContention cancels the returned context when a process opens or removes the lock file,
// which this agent holds.
func cancelOnContention(ctx context.Context, path string) (context.Context, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch --lock-file %s: %w", path, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_DELETE_SELF); err != nil {
		return nil, errors.Join(fmt.Errorf("watch --lock-file %s: %w", path, err), events.Close())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(ctx, func() { _ = events.Close() }) // unblocks the reader
	go func() {
		var b [unix.SizeofInotifyEvent + unix.NAME_MAX + 1]byte
		if n, err := events.Read(b[:]); err == nil && n > 0 {
			cancel(errLockWanted)
		}
	}()
	return ctx, nil
}
