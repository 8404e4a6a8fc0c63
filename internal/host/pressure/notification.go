package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notifier is a kernel notification that memory is being reclaimed.
type notifier interface {
	// open opens it, unless it is open.
	open() error
	// descriptor returns the descriptor that has POLLPRI on an event, or notOpen.
	descriptor() int
	// consume consumes an event, and reports whether it matters.
	consume() bool
	close()
}

// notification is a rate-limited notifier: with heavy file I/O, it fires continuously.
type notification struct {
	name         string
	notifier     notifier
	psi          bool      // the notifier is the machine's pressure stall information
	ignoredUntil time.Time // ignored until then; zero: not ignored
	failed       bool      // to open, which was logged
}

// update opens the notifier if there is a threshold, and closes it otherwise.
func (n *notification) update(left distances) error {
	if left == (distances{none, none}) {
		n.notifier.close()
		return nil
	}
	return n.notifier.open()
}

// psiNotifier is the machine's pressure stall information.
type psiNotifier struct {
	path string
	fd   int
}

// triggers fire when some task waits for memory for a twentieth of a window, in microseconds; the
// kernel's own reclaim task counts, too. Without CAP_SYS_RESOURCE a window must be a multiple of 2
// s, and the kernel checks every 2 s.
var triggers = []string{"some 50000 1000000\x00", "some 100000 2000000\x00"}

func (s *psiNotifier) open() error {
	if s.fd != notOpen {
		return nil
	}
	fd, err := unix.Open(s.path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	for _, t := range triggers {
		if _, err = unix.Write(fd, []byte(t)); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		closed(fd)
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.fd = fd
	return nil
}

func (s *psiNotifier) descriptor() int { return s.fd }

// consume has nothing to consume: the kernel reports each event once.
func (s *psiNotifier) consume() bool { return true }

func (s *psiNotifier) close() { s.fd = closed(s.fd) }

// limitNotifier is the event counter of the pods' cgroup of version 2 at its limit.
type limitNotifier struct {
	path string
	fd   int
	hits int64
}

func (l *limitNotifier) open() error {
	if l.fd != notOpen {
		return nil
	}
	fd, err := openEvents(l.path)
	if err != nil {
		return err
	}
	l.fd = fd
	l.hits, err = readHits(fd)
	if err != nil {
		l.close()
	}
	return err
}

func (l *limitNotifier) descriptor() int { return l.fd }

func (l *limitNotifier) consume() bool {
	hits, err := readHits(l.fd)
	if err != nil { // the cgroup was removed; it is reopened after the next reading
		l.close()
		return true
	}
	more := hits > l.hits
	l.hits = hits
	return more
}

func (l *limitNotifier) close() { l.fd = closed(l.fd) }

// readHits reads an open memory.events.local, which enables the next notification.
func readHits(fd int) (int64, error) {
	var b [512]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", eventsFile, err)
	}
	return parseHits(b[:n]), nil
}

// parseHits returns how often the cgroup reached its limit, or had an OOM event.
func parseHits(b []byte) int64 {
	var sum int64
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if k := string(key); k == "max" || k == "oom" {
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				sum += n
			}
		}
	}
	return sum
}
