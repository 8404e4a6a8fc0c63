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

// fakeWire is a wire on a use of memory that the test sets.
type fakeWire struct {
	use    int64
	grows  int64 // by that much, as it is laid
	err    error // of aim
	layErr error
	lays   []time.Time
	lies   bool
}

func (f *fakeWire) aim(left distances, _ int64) (int64, error) {
	return computeWire(f.use, left.pods, none), f.err
}

func (f *fakeWire) lay(at int64) (bool, error) {
	f.lays = append(f.lays, time.Now())
	f.lies = f.layErr == nil
	f.use += f.grows
	return f.use > at, f.layErr
}

func (f *fakeWire) lift() error {
	f.lies = false
	return nil
}

const wireFd, sirenFd = 1001, 1002

func (f *fakeWire) notice() (int, int16) {
	if f.lies {
		return wireFd, unix.POLLIN
	}
	return notOpen, 0
}

type fakeSiren struct{ isOpen, quiet bool }

func (f *fakeSiren) open() error {
	f.isOpen = true
	return nil
}

func (f *fakeSiren) notice() int {
	if f.isOpen {
		return sirenFd
	}
	return notOpen
}

func (f *fakeSiren) rang() bool { return !f.quiet }

func (f *fakeSiren) close() { f.isOpen = false }

// bench is a guard over fakes, in a bubble.
type bench struct {
	t     *testing.T
	wire  *fakeWire
	siren *fakeSiren
	guard *guard
	line  *line
	log   strings.Builder

	told    chan distances
	events  chan int // descriptors
	ready   bool     // the siren has an event that was not taken
	changes chan func()
	news    *distances
	wakes   []time.Duration
	began   time.Time
}

func inBubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{
			t: t, wire: &fakeWire{use: gi}, siren: &fakeSiren{}, told: make(chan distances), events: make(chan int), changes: make(chan func()), began: time.Now(),
		}
		b.line = newLine("/kubepods", b.wire)
		b.guard = &guard{
			watching: new(atomic.Bool), stalls: new(atomic.Bool),
			wires: []*line{b.line}, alarms: []*alarm{{name: "siren", siren: b.siren, psi: true}}, bell: &bell{fd: notOpen},
			wait: b.wait, wake: func() { b.wakes = append(b.wakes, time.Since(b.began)) }, log: slog.New(slog.NewTextHandler(&b.log, nil)),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- b.guard.run(ctx, func() (distances, bool) {
				if b.news == nil {
					return distances{}, false
				}
				news := *b.news
				b.news = nil
				return news, true
			})
		}()
		synctest.Wait()
		f(b)
		cancel()
		b.told <- distances{}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		b.guard.close()
		if b.wire.lies || b.siren.isOpen {
			t.Error("something is left open")
		}
	})
}

// wait is poll(2), with told distances in place of the bell.
func (b *bench) wait(fds []unix.PollFd, until time.Time) error {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	for {
		if b.ready && note(fds, sirenFd) {
			b.ready = false
			return nil
		}
		select {
		case d := <-b.told:
			b.news = &d
			return nil
		case fd := <-b.events:
			if fd == sirenFd {
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
	b.told <- distances{none, left}
	synctest.Wait()
}

func (b *bench) event(fd int) {
	b.events <- fd
	synctest.Wait()
}

// change changes a fake while the guard waits.
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

// A wire is laid where it should be, tells once, and is laid again when there is a reading; nothing
// happens in a day of rest.
func TestWire(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.arm(gi)
		if !b.wire.lies || b.line.lies != 2*gi {
			t.Fatalf("the wire is at %d, want %d", b.line.lies, 2*gi)
		}
		b.after(24 * time.Hour)
		b.wantWakes()
		b.arm(gi + mi) // as good as the same
		if len(b.wire.lays) != 1 {
			t.Errorf("laid %d times, want once", len(b.wire.lays))
		}
		b.event(wireFd)
		b.wantWakes(24 * time.Hour)
		if b.wire.lies {
			t.Error("a wire that was crossed lies on")
		}
		b.arm(mi) // near
		if b.wire.lies {
			t.Error("a wire lies nearer than the least distance")
		}
		b.arm(gi)
		if !b.wire.lies {
			t.Error("no wire after a reading")
		}
		b.arm(none)
		if b.wire.lies {
			t.Error("a wire without a threshold")
		}
	})
}

// Who relies on the wire is told when there is none any more.
func TestWatching(t *testing.T) {
	inBubble(t, func(b *bench) {
		want := func(what string, watching bool, wakes int) {
			b.t.Helper()
			if b.guard.watching.Load() != watching || len(b.wakes) != wakes {
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
		b.event(wireFd)
		want("it was crossed", false, 2)
		b.change(func() { b.wire.layErr = errors.New("no") })
		b.arm(gi)
		b.after(time.Second)
		want("it cannot be laid", false, 2)
		b.change(func() { b.wire.layErr = nil })
		b.arm(gi)
		b.after(time.Second)
		want("it can", true, 2)
		b.change(func() { b.wire.err = errForeign })
		b.arm(gi)
		want("it is somebody else's", false, 3)
	})
}

// However often there are readings, the wire moves four times a second at most, and the newest
// reading counts.
func TestWireMovesSeldom(t *testing.T) {
	inBubble(t, func(b *bench) {
		for i := range int64(100) {
			b.arm(gi + i*10*mi)
			b.after(10 * time.Millisecond)
		}
		b.after(time.Second)
		if n := len(b.wire.lays); n != 5 {
			t.Errorf("laid %d times in a second, want 5", n)
		}
		if want := 2*gi + 990*mi; b.line.lies != want {
			t.Errorf("the wire is at %d, want %d", b.line.lies, want)
		}
		b.wantWakes()
	})
}

// What is crossed while the wire is laid is told.
func TestWireCrossedWhileLaid(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.wire.grows = 2 * gi })
		b.arm(gi)
		b.wantWakes(0)
		if b.wire.lies {
			t.Error("a wire that was crossed lies on")
		}
	})
}

// A wire that fails has its owner look later, and ends when it goes on failing.
func TestWireFails(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.wire.layErr = errors.New("wrong") })
		for range 2 * patience {
			b.arm(gi)
			b.after(retry)
		}
		b.wantWakes(retry, 2*retry, 3*retry, 4*retry)
		if n := strings.Count(b.log.String(), "level=WARN"); n != 1 || len(b.wire.lays) != patience {
			t.Errorf("%d tries, and said %d times:\n%s", len(b.wire.lays), n, &b.log)
		}
	})
}

// Failures do not count when the wire has lain in between.
func TestWireFailsNowAndThen(t *testing.T) {
	inBubble(t, func(b *bench) {
		for range 2 * patience {
			b.change(func() { b.wire.err = errors.New("wrong") })
			b.arm(gi)
			b.change(func() { b.wire.err = nil })
			b.arm(gi)
			b.after(time.Minute)
			b.arm(gi)
		}
		if n := len(b.wakes); n != 2*patience-1 { // each time that the wire went
			t.Errorf("woken at %v", b.wakes)
		}
		if !b.wire.lies || b.log.String() != "" {
			t.Errorf("lies: %v, said:\n%s", b.wire.lies, &b.log)
		}
	})
}

// Without the pods' cgroup there is no wire and nothing to say; where somebody else has bound the
// memory, there is none for good.
func TestWireIsNotLaid(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.wire.err = fs.ErrNotExist })
		for range 2 * patience {
			b.arm(gi)
		}
		if b.log.String() != "" {
			t.Errorf("said:\n%s", &b.log)
		}
		b.change(func() { b.wire.err = errForeign })
		b.arm(gi)
		b.change(func() { b.wire.err = nil })
		b.arm(gi)
		b.after(time.Hour)
		b.wantWakes()
		if b.wire.lies || strings.Count(b.log.String(), "level=INFO") != 1 {
			t.Errorf("lies: %v, said:\n%s", b.wire.lies, &b.log)
		}
	})
}

// An alarm that rings all the time wakes as often as memory could become short, and what rang while
// it rested is told then.
func TestAlarm(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.after(time.Second)
		b.arm(5 * gi)
		for range 100 { // 10 s
			b.event(sirenFd)
			b.after(100 * time.Millisecond)
		}
		rest := computeRest(distances{none, 5 * gi})
		b.wantWakes(time.Second, time.Second+rest, time.Second+2*rest)
		b.change(func() { b.siren.quiet = true })
		b.after(time.Hour)
		b.event(sirenFd)
		b.after(time.Hour)
		b.wantWakes(time.Second, time.Second+rest, time.Second+2*rest)
	})
}

// Without a threshold nothing is open.
func TestAlarmWithoutThreshold(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.arm(gi)
		if !b.siren.isOpen {
			t.Error("the siren is not open")
		}
		if !b.guard.stalls.Load() {
			t.Error("open pressure stall information is not reported")
		}
		b.arm(none)
		if b.siren.isOpen {
			t.Error("the siren is open")
		}
		if b.guard.stalls.Load() {
			t.Error("closed pressure stall information is reported as open")
		}
	})
}
