package events

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestResting has things wait as containerd's queues of events do, and counts the ticks.
func TestResting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResting(time.Second)
		waiting := 0
		add := func() { r.more(waiting); waiting++ }
		ticks := func(during time.Duration) (n int) {
			for end := time.After(during); ; {
				select {
				case <-r.C:
					n++
					r.left(waiting)
				case <-end:
					return n
				}
			}
		}
		if n := ticks(time.Hour); n != 1 {
			t.Errorf("%d ticks while nothing waits, want 1", n)
		}
		add()
		if n := ticks(2500 * time.Millisecond); n != 2 {
			t.Errorf("%d ticks in 2.5 s while one waits, want 2", n)
		}
		add() // does not put off the next tick, half a second from now
		if n := ticks(600 * time.Millisecond); n != 1 {
			t.Errorf("%d ticks after a second one waits, want 1", n)
		}
		waiting = 0
		if n := ticks(time.Hour); n != 1 {
			t.Errorf("%d ticks after the last has gone, want 1", n)
		}
		add()
		if n := ticks(2500 * time.Millisecond); n != 2 {
			t.Errorf("%d ticks in 2.5 s when one waits again, want 2", n)
		}
	})
}
