package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// notOpen is the value of a descriptor that is not open.
const notOpen = -1

// closed closes a descriptor, if it is open, and returns notOpen.
func closed(fd int) int {
	if fd != notOpen {
		_ = unix.Close(fd)
	}
	return notOpen
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// isGone reports whether an operation failed because the cgroup does not exist.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// readNumber reads a file with one number; "max" is none.
func readNumber(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	s := string(bytes.TrimSpace(b))
	if s == unbounded {
		return none, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s has %q, want a number", path, s)
	}
	return n, nil
}

// writeNow writes a file of a cgroup in non-blocking mode: since Linux 6.16, the kernel then does
// not reclaim memory above a new memory.high before it returns.
func writeNow(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(value))
		closed(fd)
	}
	if err != nil {
		return &fs.PathError{Op: "write " + value + " to", Path: path, Err: err}
	}
	return nil
}

// openEvents opens a memory.events.local that has POLLPRI on its next event: reading it clears
// earlier events.
func openEvents(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return notOpen, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if _, err := readHits(fd); err != nil {
		return closed(fd), err
	}
	return fd, nil
}

// poll waits until a descriptor has an event, or until the time; zero means forever. It uses
// poll(2) instead of Go's poller, because the kernel reports a pressure event only to the first
// poller: nested epolls lose it.
func poll(fds []unix.PollFd, until time.Time) error {
	timeout := -1
	if !until.IsZero() {
		timeout = int(max(0, (time.Until(until)+time.Millisecond-1)/time.Millisecond))
	}
	if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

// eventFD wakes a poll from another goroutine. It does nothing while it is not open.
type eventFD struct {
	mu sync.Mutex
	fd int // guarded by mu: an eventfd, or notOpen
}

func (b *eventFD) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fd = fd
	return nil
}

func (b *eventFD) signal() {
	b.with(func(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
}

func (b *eventFD) drain() { b.with(func(fd int) { _, _ = unix.Read(fd, make([]byte, 8)) }) }

func (b *eventFD) close() { b.with(func(int) { b.fd = closed(b.fd) }) }

func (b *eventFD) descriptor() (n int) {
	n = notOpen
	b.with(func(fd int) { n = fd })
	return n
}

// with calls f with the descriptor if it is open, and keeps it open meanwhile.
func (b *eventFD) with(f func(fd int)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd != notOpen {
		f(b.fd)
	}
}
