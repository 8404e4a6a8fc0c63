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

// guard waits for kernel notifications and wakes the owner. Only the goroutine of run uses it.
type guard struct {
	wires  []*line
	alarms []*alarm
	bell   *bell
	// wait blocks until one of the descriptors has an event, which it sets in fds, or until the
	// time; zero means forever.
	wait func(fds []unix.PollFd, until time.Time) error
	wake func()
	// watching is whether each relevant memory usage has a wire; stalls is whether the machine's
	// pressure stall information is open.
	watching, stalls *atomic.Bool
	log              *slog.Logger

	left distances
}

// run serves until ctx is done or wait fails. news returns new distances, if any.
func (g *guard) run(ctx context.Context, news func() (distances, bool)) error {
	for ctx.Err() == nil {
		told, ok := news()
		if ok {
			g.left = told
			g.aim()
		}
		g.step(time.Now())
		if was, is := g.watching.Swap(g.isWatching()), g.isWatching(); ok && was && !is {
			g.wake() // the owner may sleep for long, relying on the earlier coverage
		}
		fds, takes := g.notices()
		if err := g.wait(fds, g.next()); err != nil {
			return err
		}
		g.bell.silence()
		for i, fd := range fds {
			if fd.Revents != 0 && takes[i] != nil {
				takes[i]()
			}
		}
	}
	return ctx.Err()
}

// aim applies new distances to wires and alarms.
func (g *guard) aim() {
	for _, l := range g.wires {
		g.failed(l, l.aim(g.left))
	}
	for _, a := range g.alarms {
		if err := a.aim(g.left); err != nil && !isGone(err) && !a.failed {
			a.failed = true
			g.log.Info("the kernel does not tell that memory is waited for", "of", a.name, "error", err)
		}
	}
	g.stalls.Store(slices.ContainsFunc(g.alarms, func(a *alarm) bool { return a.psi && a.siren.notice() != notOpen }))
}

// isWatching reports whether a wire is set, or about to be, and none has failed.
func (g *guard) isWatching() bool {
	some := false
	for _, l := range g.wires {
		if l.ended || !l.retry.IsZero() {
			return false
		}
		some = some || l.lies != none || l.should != none
	}
	return some
}

// step does what is due.
func (g *guard) step(now time.Time) {
	for _, l := range g.wires {
		switch due := l.due(); {
		case due.IsZero() || now.Before(due):
		case l.should == none: // it failed
			l.retry = time.Time{}
			g.wake()
		default:
			crossed, err := l.lay(now)
			g.failed(l, err)
			if crossed {
				g.wake()
			}
		}
	}
	for _, a := range g.alarms {
		if !a.rests.IsZero() && !now.Before(a.rests) {
			a.rests = time.Time{}
		}
	}
}

// failed logs an error of a wire, as a warning if the wire is disabled.
func (g *guard) failed(l *line, err error) {
	switch {
	case err == nil || isGone(err):
	case errors.Is(err, errForeign):
		g.log.Info("Another program has set memory.high of the pods' cgroup: no early memory notifications from the kernel", "cgroup", l.name)
	case l.ended:
		g.log.Warn("the kernel does not tell beforehand that memory is used up", "cgroup", l.name, "failures", l.failures, "error", err)
	default:
		g.log.Debug("no wire at the use of memory", "cgroup", l.name, "error", err)
	}
}

// notices returns the descriptors to wait for, with the handlers of their events.
func (g *guard) notices() ([]unix.PollFd, []func()) {
	fds, takes := []unix.PollFd{{Fd: int32(g.bell.number()), Events: unix.POLLIN}}, []func(){nil}
	add := func(fd int, events int16, take func()) {
		if fd != notOpen {
			fds, takes = append(fds, unix.PollFd{Fd: int32(fd), Events: events}), append(takes, take)
		}
	}
	for _, l := range g.wires {
		fd, events := l.wire.notice()
		add(fd, events, func() {
			at := l.lies
			g.failed(l, l.lift()) // first: pods may be throttled
			g.wake()
			g.log.Debug("memory: a wire was crossed", "cgroup", l.name, "at", at)
		})
	}
	for _, a := range g.alarms {
		if !a.rests.IsZero() {
			continue
		}
		add(a.siren.notice(), unix.POLLPRI, func() {
			if a.siren.rang() {
				g.log.Debug("memory: an alarm rang", "of", a.name)
				a.rests = time.Now().Add(computeRest(g.left))
				g.wake()
			}
		})
	}
	return fds, takes
}

// next returns when something is due, zero for never.
func (g *guard) next() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, l := range g.wires {
		earlier(l.due())
	}
	for _, a := range g.alarms {
		earlier(a.rests)
	}
	return next
}

func (g *guard) close() {
	for _, l := range g.wires {
		if err := l.wire.lift(); err != nil && !isGone(err) {
			g.log.Warn("the wire at the use of memory stays: pods that reach it are slowed down", "cgroup", l.name, "error", err)
		}
	}
	for _, a := range g.alarms {
		a.siren.close()
	}
}
