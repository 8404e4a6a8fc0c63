package node

import (
	"fmt"
	"sync"
	"time"

	"berth/internal/health"
)

const (
	// smallestStep is the least step of the machine's clock that is reported: time services make
	// smaller ones all the time.
	smallestStep = 10 * time.Second
	// stepShows is how long a step is reported.
	stepShows = time.Hour
)

// clock notices that the machine's clock was set. It is checked at each renewal of the lease, which
// happens anyhow.
type clock struct {
	last reading // of the goroutine that renews the lease

	mu   sync.Mutex
	step error     // guarded by mu; the last one
	at   time.Time // guarded by mu; when it was noticed
}

// reading is what the machine's clock shows, and how long this agent has run by the kernel's
// monotonic clock, which nobody sets.
type reading struct {
	wall    time.Time
	elapsed time.Duration
}

// read returns what the clocks show now.
func read(started time.Time) reading {
	now := time.Now()
	return reading{wall: now.Round(0), elapsed: now.Sub(started)}
}

// check compares how far both clocks have come since the last check.
func (c *clock) check(now reading) {
	step := now.wall.Sub(c.last.wall) - (now.elapsed - c.last.elapsed)
	isFirst := c.last.wall.IsZero()
	c.last = now
	if isFirst || step.Abs() < smallestStep {
		return
	}
	how := fmt.Errorf("the clock of the machine was set forward by %s, or the machine was suspended", step.Round(time.Second))
	if step < 0 {
		how = fmt.Errorf("the clock of the machine was set back by %s", -step.Round(time.Second))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Now()
	c.step = health.Since(how, c.at)
}

// health returns the last step of the machine's clock for an hour, and else nil.
func (c *clock) health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > stepShows {
		return nil
	}
	return c.step
}
