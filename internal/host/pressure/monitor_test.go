package pressure

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeThreshold is a threshold of a memory usage that the test sets.
type fakeThreshold struct {
	use    int64
	grows  int64 // by that much, while it is set
	err    error // of target
	setErr error
	sets   []time.Time
	isSet  bool
}

func (f *fakeThreshold) target(left distances, _ int64) (int64, error) {
	return computeThreshold(f.use, left.pods, none), f.err
}

func (f *fakeThreshold) set(at int64) (bool, error) {
	f.sets = append(f.sets, time.Now())
	f.isSet = f.setErr == nil
	f.use += f.grows
	return f.use > at, f.setErr
}

func (f *fakeThreshold) remove() error {
	f.isSet = false
	return nil
}

const thresholdFd, notifierFd = 1001, 1002

func (f *fakeThreshold) descriptor() (int, int16) {
	if f.isSet {
		return thresholdFd, unix.POLLIN
	}
	return notOpen, 0
}

type fakeNotifier struct{ isOpen, quiet bool }

func (f *fakeNotifier) open() error {
	f.isOpen = true
	return nil
}

func (f *fakeNotifier) descriptor() int {
	if f.isOpen {
		return notifierFd
	}
	return notOpen
}

func (f *fakeNotifier) consume() bool { return !f.quiet }

func (f *fakeNotifier) close() { f.isOpen = false }

// bench is a monitor over fakes, in a bubble.
type bench struct {
	t         *testing.T
	threshold *fakeThreshold
	notifier  *fakeNotifier
	monitor   *monitor
	state     *thresholdState
	log       strings.Builder

	armed   chan distances
	events  chan int // descriptors
	ready   bool     // the notifier has an event that was not taken
	changes chan func()
	pending *distances
	wakes   []time.Duration
	began   time.Time
}

func inBubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{
			t: t, threshold: &fakeThreshold{use: gi}, notifier: &fakeNotifier{}, armed: make(chan distances), events: make(chan int), changes: make(chan func()), began: time.Now(),
		}
		b.state = newThresholdState("/kubepods", b.threshold)
		b.monitor = &monitor{
			watching: new(atomic.Bool), stalls: new(atomic.Bool),
			thresholds: []*thresholdState{b.state}, notifications: []*notification{{name: "siren", notifier: b.notifier, psi: true}}, eventFD: &eventFD{fd: notOpen},
			wait: b.wait, wake: func() { b.wakes = append(b.wakes, time.Since(b.began)) }, log: slog.New(slog.NewTextHandler(&b.log, nil)),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- b.monitor.run(ctx, func() (distances, bool) {
				if b.pending == nil {
					return distances{}, false
				}
				left := *b.pending
				b.pending = nil
				return left, true
			})
		}()
		synctest.Wait()
		f(b)
		cancel()
		b.armed <- distances{}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		b.monitor.close()
		if b.threshold.isSet || b.notifier.isOpen {
			t.Error("something is left open")
		}
	})
}

// wait is poll(2), with armed distances in place of the eventFD.
func (b *bench) wait(fds []unix.PollFd, until time.Time) error {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	for {
		if b.ready && note(fds, notifierFd) {
			b.ready = false
			return nil
		}
		select {
		case d := <-b.armed:
			b.pending = &d
			return nil
		case fd := <-b.events:
			if fd == notifierFd {
				b.ready = true
			} else if note(fds, fd) {
				return nil
			}
		case f := <-b.changes:
			f()
		case <-due:
			return nil
		}
	}
}

func note(fds []unix.PollFd, fd int) bool {
	for i := range fds {
		if int(fds[i].Fd) == fd {
			fds[i].Revents = fds[i].Events
			return true
		}
	}
	return false
}

func (b *bench) arm(left int64) {
	b.armed <- distances{none, left}
	synctest.Wait()
}

func (b *bench) event(fd int) {
	b.events <- fd
	synctest.Wait()
}

// change changes a fake while the monitor waits.
func (b *bench) change(f func()) {
	b.changes <- f
	synctest.Wait()
}

func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) wantWakes(want ...time.Duration) {
	b.t.Helper()
	if len(b.wakes) != len(want) {
		b.t.Fatalf("woken at %v, want %v", b.wakes, want)
	}
	for i, w := range want {
		if b.wakes[i] != w {
			b.t.Errorf("woken at %v, want %v", b.wakes, want)
		}
	}
}

// A threshold is set where it should be, reports once, and is set again after the next reading;
// nothing happens in a day without a crossing.
func TestThreshold(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.arm(gi)
		if !b.threshold.isSet || b.state.current != 2*gi {
			t.Fatalf("the wire is at %d, want %d", b.state.current, 2*gi)
		}
		b.after(24 * time.Hour)
		b.wantWakes()
		b.arm(gi + mi) // as good as the same
		if len(b.threshold.sets) != 1 {
			t.Errorf("laid %d times, want once", len(b.threshold.sets))
		}
		b.event(thresholdFd)
		b.wantWakes(24 * time.Hour)
		if b.threshold.isSet {
			t.Error("a wire that was crossed lies on")
		}
		b.arm(mi) // near
		if b.threshold.isSet {
			t.Error("a wire lies nearer than the least distance")
		}
		b.arm(gi)
		if !b.threshold.isSet {
			t.Error("no wire after a reading")
		}
		b.arm(none)
		if b.threshold.isSet {
			t.Error("a wire without a threshold")
		}
	})
}

// The owner is woken when no threshold is set any more.
func TestWatching(t *testing.T) {
	inBubble(t, func(b *bench) {
		want := func(what string, watching bool, wakes int) {
			b.t.Helper()
			if b.monitor.watching.Load() != watching || len(b.wakes) != wakes {
				t.Errorf("%s: watching is %v, woken %d times; want %v, %d", what, !watching, len(b.wakes), watching, wakes)
			}
		}
		want("at first", false, 0)
		b.arm(gi)
		want("a wire lies", true, 0)
		b.arm(mi)
		want("too near for a wire", false, 1)
		b.arm(mi)
		want("as before", false, 1)
		b.arm(gi)
		b.after(time.Second)
		want("a wire again", true, 1)
		b.event(thresholdFd)
		want("it was crossed", false, 2)
		b.change(func() { b.threshold.setErr = errors.New("no") })
		b.arm(gi)
		b.after(time.Second)
		want("it cannot be laid", false, 2)
		b.change(func() { b.threshold.setErr = nil })
		b.arm(gi)
		b.after(time.Second)
		want("it can", true, 2)
		b.change(func() { b.threshold.err = errForeign })
		b.arm(gi)
		want("it is somebody else's", false, 3)
	})
}

// However often readings arrive, the threshold changes at most four times a second, to the newest
// reading.
func TestThresholdChangesAreLimited(t *testing.T) {
	inBubble(t, func(b *bench) {
		for i := range int64(100) {
			b.arm(gi + i*10*mi)
			b.after(10 * time.Millisecond)
		}
		b.after(time.Second)
		if n := len(b.threshold.sets); n != 5 {
			t.Errorf("laid %d times in a second, want 5", n)
		}
		if want := 2*gi + 990*mi; b.state.current != want {
			t.Errorf("the wire is at %d, want %d", b.state.current, want)
		}
		b.wantWakes()
	})
}

// A crossing while the threshold is set is reported.
func TestThresholdCrossedWhileSet(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.threshold.grows = 2 * gi })
		b.arm(gi)
		b.wantWakes(0)
		if b.threshold.isSet {
			t.Error("a wire that was crossed lies on")
		}
	})
}

// A threshold that fails wakes its owner later, and is disabled if it continues to fail.
func TestThresholdFails(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.threshold.setErr = errors.New("wrong") })
		for range 2 * maxFailures {
			b.arm(gi)
			b.after(retryDelay)
		}
		b.wantWakes(retryDelay, 2*retryDelay, 3*retryDelay, 4*retryDelay)
		if n := strings.Count(b.log.String(), "level=WARN"); n != 1 || len(b.threshold.sets) != maxFailures {
			t.Errorf("%d tries, and said %d times:\n%s", len(b.threshold.sets), n, &b.log)
		}
	})
}

// Failures do not count when the threshold was set in between.
func TestThresholdFailsOccasionally(t *testing.T) {
	inBubble(t, func(b *bench) {
		for range 2 * maxFailures {
			b.change(func() { b.threshold.err = errors.New("wrong") })
			b.arm(gi)
			b.change(func() { b.threshold.err = nil })
			b.arm(gi)
			b.after(time.Minute)
			b.arm(gi)
		}
		if n := len(b.wakes); n != 2*maxFailures-1 { // each time that the threshold was removed
			t.Errorf("woken at %v", b.wakes)
		}
		if !b.threshold.isSet || b.log.String() != "" {
			t.Errorf("lies: %v, said:\n%s", b.threshold.isSet, &b.log)
		}
	})
}

// Without the pods' cgroup, no threshold is set and nothing is logged. If another program has set
// memory.high, no threshold is set any more.
func TestThresholdNotSet(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.threshold.err = fs.ErrNotExist })
		for range 2 * maxFailures {
			b.arm(gi)
		}
		if b.log.String() != "" {
			t.Errorf("said:\n%s", &b.log)
		}
		b.change(func() { b.threshold.err = errForeign })
		b.arm(gi)
		b.change(func() { b.threshold.err = nil })
		b.arm(gi)
		b.after(time.Hour)
		b.wantWakes()
		if b.threshold.isSet || strings.Count(b.log.String(), "level=INFO") != 1 {
			t.Errorf("lies: %v, said:\n%s", b.threshold.isSet, &b.log)
		}
	})
}

// A notification that fires continuously wakes as often as memory could become short. An event
// while it is ignored is reported afterwards.
func TestNotification(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.after(time.Second)
		b.arm(5 * gi)
		for range 100 { // 10 s
			b.event(notifierFd)
			b.after(100 * time.Millisecond)
		}
		rest := computeIgnoreTime(distances{none, 5 * gi})
		b.wantWakes(time.Second, time.Second+rest, time.Second+2*rest)
		b.change(func() { b.notifier.quiet = true })
		b.after(time.Hour)
		b.event(notifierFd)
		b.after(time.Hour)
		b.wantWakes(time.Second, time.Second+rest, time.Second+2*rest)
	})
}

// Without a threshold nothing is open.
func TestNotificationWithoutThreshold(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.arm(gi)
		if !b.notifier.isOpen {
			t.Error("the siren is not open")
		}
		if !b.monitor.stalls.Load() {
			t.Error("open pressure stall information is not reported")
		}
		b.arm(none)
		if b.notifier.isOpen {
			t.Error("the siren is open")
		}
		if b.monitor.stalls.Load() {
			t.Error("closed pressure stall information is reported as open")
		}
	})
}
