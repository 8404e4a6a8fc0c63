package oom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroupstat"
)

// eventfds watches memory.oom_control of cgroup v1: the kernel adds to an eventfd per cgroup when a
// limit of the cgroup or an ancestor is reached, just before it kills
// (Documentation/admin-guide/cgroup-v1/memory.rst, 10 OOM Control). One epoll descriptor holds them
// all and is registered with Go's poller, so that waiting costs no goroutine or thread for each.
type eventfds struct {
	h     cgroupstat.Hierarchy
	epoll *os.File
	wake  func(path string)

	mu    sync.Mutex
	fds   map[string]int // guarded by mu; by path
	paths map[int]string // guarded by mu
}

func newEventfds(h cgroupstat.Hierarchy, wake func(string)) (*eventfds, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that os.NewFile registers it with the poller
	}
	if err != nil {
		return nil, fmt.Errorf("watch memory.oom_control: epoll: %w", err)
	}
	return &eventfds{h: h, epoll: os.NewFile(uintptr(fd), "epoll"), wake: wake, fds: map[string]int{}, paths: map[int]string{}}, nil
}

// Add starts watching the cgroup.
func (e *eventfds) Add(path string) error {
	fd, err := e.register(path)
	if err != nil {
		return fmt.Errorf("watch memory.oom_control of %s: %w", path, err)
	}
	e.mu.Lock()
	e.fds[path], e.paths[fd] = fd, path
	e.mu.Unlock()
	err = e.control(unix.EPOLL_CTL_ADD, fd)
	if err != nil {
		e.Remove(path)
		return fmt.Errorf("watch memory.oom_control of %s: epoll: %w", path, err)
	}
	return nil
}

// register returns an eventfd that is registered with the kernel.
func (e *eventfds) register(path string) (int, error) {
	f, err := os.Open(e.h.EventsFile(path))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return 0, err
	}
	control := filepath.Join(e.h.Dir("memory", path), "cgroup.event_control")
	if err := os.WriteFile(control, fmt.Appendf(nil, "%d %d", fd, f.Fd()), 0); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func (e *eventfds) control(op, fd int) error {
	raw, err := e.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = raw.Control(func(epoll uintptr) {
		cerr = unix.EpollCtl(int(epoll), op, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	})
	return errors.Join(err, cerr)
}

// Remove stops watching the cgroup. The kernel unregisters a closed eventfd.
func (e *eventfds) Remove(path string) {
	e.mu.Lock()
	fd, ok := e.fds[path]
	delete(e.fds, path)
	delete(e.paths, fd)
	e.mu.Unlock()
	if ok {
		_ = unix.Close(fd) // also removes it from epoll
	}
}

// Run serves until ctx is done.
func (e *eventfds) Run(ctx context.Context) error {
	defer e.close()
	defer context.AfterFunc(ctx, func() { _ = e.epoll.Close() })()
	raw, err := e.epoll.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch memory.oom_control: %w", err)
	}
	events := make([]unix.EpollEvent, 16)
	for {
		var n int
		var werr error
		err := raw.Read(func(fd uintptr) bool {
			n, werr = unix.EpollWait(int(fd), events, 0)
			return n > 0 || werr != nil
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("watch memory.oom_control: %w", err)
		case errors.Is(werr, unix.EINTR):
			continue
		case werr != nil:
			return fmt.Errorf("watch memory.oom_control: %w", werr)
		}
		for _, ev := range events[:n] {
			e.take(int(ev.Fd))
		}
	}
}

// take resets the eventfd and wakes. The lock prevents the descriptor from being closed and reused
// meanwhile; the read does not block.
func (e *eventfds) take(fd int) {
	e.mu.Lock()
	path, ok := e.paths[fd]
	if ok {
		var count [8]byte
		_, _ = unix.Read(fd, count[:]) // the number does not matter
	}
	e.mu.Unlock()
	if ok {
		e.wake(path)
	}
}

func (e *eventfds) close() {
	_ = e.epoll.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fd := range e.fds {
		_ = unix.Close(fd)
	}
	clear(e.fds)
	clear(e.paths)
}
