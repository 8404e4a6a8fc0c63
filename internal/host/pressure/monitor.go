package pressure

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// monitor waits for kernel notifications and wakes the owner. Only the goroutine of run uses it.
type monitor struct {
	thresholds    []*thresholdState
	notifications []*notification
	eventFD       *eventFD
	// wait blocks until one of the descriptors has an event, which it sets in fds, or until the
	// time; zero means forever.
	wait func(fds []unix.PollFd, until time.Time) error
	wake func()
	// watching is whether each relevant memory usage has a threshold; stalls is whether the
	// machine's pressure stall information is open.
	watching, stalls *atomic.Bool
	log              *slog.Logger

	left distances
}

// run serves until ctx is done or wait fails. updates returns new distances, if any.
func (m *monitor) run(ctx context.Context, updates func() (distances, bool)) error {
	for ctx.Err() == nil {
		left, ok := updates()
		if ok {
			m.left = left
			m.update()
		}
		m.step(time.Now())
		if was, is := m.watching.Swap(m.isWatching()), m.isWatching(); ok && was && !is {
			m.wake() // the owner may sleep for long, relying on the earlier coverage
		}
		fds, handlers := m.descriptors()
		if err := m.wait(fds, m.next()); err != nil {
			return err
		}
		m.eventFD.drain()
		for i, fd := range fds {
			if fd.Revents != 0 && handlers[i] != nil {
				handlers[i]()
			}
		}
	}
	return ctx.Err()
}

// update applies new distances to thresholds and notifications.
func (m *monitor) update() {
	for _, s := range m.thresholds {
		m.failed(s, s.update(m.left))
	}
	for _, n := range m.notifications {
		if err := n.update(m.left); err != nil && !isGone(err) && !n.failed {
			n.failed = true
			m.log.Info("No memory pressure notifications from the kernel", "of", n.name, "error", err)
		}
	}
	m.stalls.Store(slices.ContainsFunc(m.notifications, func(n *notification) bool { return n.psi && n.notifier.descriptor() != notOpen }))
}

// isWatching reports whether a threshold is set, or about to be, and none has failed.
func (m *monitor) isWatching() bool {
	some := false
	for _, s := range m.thresholds {
		if s.disabled || !s.retryAt.IsZero() {
			return false
		}
		some = some || s.current != none || s.desired != none
	}
	return some
}

// step does what is due.
func (m *monitor) step(now time.Time) {
	for _, s := range m.thresholds {
		switch due := s.due(); {
		case due.IsZero() || now.Before(due):
		case s.desired == none: // it failed
			s.retryAt = time.Time{}
			m.wake()
		default:
			crossed, err := s.set(now)
			m.failed(s, err)
			if crossed {
				m.wake()
			}
		}
	}
	for _, n := range m.notifications {
		if !n.ignoredUntil.IsZero() && !now.Before(n.ignoredUntil) {
			n.ignoredUntil = time.Time{}
		}
	}
}

// failed logs an error of a threshold, as a warning if the threshold is disabled.
func (m *monitor) failed(s *thresholdState, err error) {
	switch {
	case err == nil || isGone(err):
	case errors.Is(err, errForeign):
		m.log.Info("Another program has set memory.high of the pods' cgroup: no early memory notifications from the kernel", "cgroup", s.name)
	case s.disabled:
		m.log.Warn("No early memory notifications from the kernel", "cgroup", s.name, "failures", s.failures, "error", err)
	default:
		m.log.Debug("No threshold of the memory usage", "cgroup", s.name, "error", err)
	}
}

// descriptors returns the descriptors to wait for, with the handlers of their events.
func (m *monitor) descriptors() ([]unix.PollFd, []func()) {
	fds, handlers := []unix.PollFd{{Fd: int32(m.eventFD.descriptor()), Events: unix.POLLIN}}, []func(){nil}
	add := func(fd int, events int16, handle func()) {
		if fd != notOpen {
			fds, handlers = append(fds, unix.PollFd{Fd: int32(fd), Events: events}), append(handlers, handle)
		}
	}
	for _, s := range m.thresholds {
		fd, events := s.threshold.descriptor()
		add(fd, events, func() {
			at := s.current
			m.failed(s, s.remove()) // first: pods may be throttled
			m.wake()
			m.log.Debug("Memory threshold crossed", "cgroup", s.name, "at", at)
		})
	}
	for _, n := range m.notifications {
		if !n.ignoredUntil.IsZero() {
			continue
		}
		add(n.notifier.descriptor(), unix.POLLPRI, func() {
			if n.notifier.consume() {
				m.log.Debug("Memory notification received", "of", n.name)
				n.ignoredUntil = time.Now().Add(computeIgnoreTime(m.left))
				m.wake()
			}
		})
	}
	return fds, handlers
}

// next returns when something is due, zero for never.
func (m *monitor) next() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, s := range m.thresholds {
		earlier(s.due())
	}
	for _, n := range m.notifications {
		earlier(n.ignoredUntil)
	}
	return next
}

func (m *monitor) close() {
	for _, s := range m.thresholds {
		if err := s.threshold.remove(); err != nil && !isGone(err) {
			m.log.Warn("Failed to remove a memory threshold: pods that reach it may be throttled", "cgroup", s.name, "error", err)
		}
	}
	for _, n := range m.notifications {
		n.notifier.close()
	}
}
