package node

import (
	"fmt"
	"sync"
	"time"

	"berth/internal/health"
)

const (
	// smallestStep is the smallest step of the machine's clock that is reported: time services make
	// smaller ones all the time.
	smallestStep = 10 * time.Second
	// stepShows is how long a step is reported.
	stepShows = time.Hour
)

// clock detects steps of the machine's clock. It is checked at each renewal of the lease.
type clock struct {
	last reading // owned by the goroutine that renews the lease

	mu   sync.Mutex
	step error     // guarded by mu; the last one
	at   time.Time // guarded by mu; when it was detected
}

// reading is the time of the machine's clock, and the agent's run time by the kernel's monotonic
// clock, which is never set.
type reading struct {
	wall    time.Time
	elapsed time.Duration
}

func read(started time.Time) reading {
	now := time.Now()
	return reading{wall: now.Round(0), elapsed: now.Sub(started)}
}

// check compares how far both clocks have advanced since the last check.
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

// health returns the last step of the machine's clock for an hour, then nil.
func (c *clock) health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > stepShows {
		return nil
	}
	return c.step
}
