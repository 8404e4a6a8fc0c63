package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Run supervises the runtime until ctx is done, which leaves containerd running. It calls Ensure
// first if necessary, and fails only if that fails or the process cannot be watched.
func (r *Runtime) Run(ctx context.Context) error {
	r.mu.Lock()
	needed := r.running == nil && !r.stopped
	r.mu.Unlock()
	if needed {
		if _, err := r.Ensure(ctx); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.supervise(ctx) })
	g.Go(func() error { r.runUpkeep(ctx); return nil })
	g.Go(func() error { r.images.follow(ctx, r.lock); return nil })
	if r.cfg.NetworkPlugins != "" {
		g.Go(func() error { r.Network.followPlugins(ctx, r.reapplyNetwork); return nil })
	}
	return g.Wait()
}

// runUpkeep runs the upkeep every hour, and also scans for orphans shortly after each start of the
// agent and of containerd, whose exits leave orphans.
func (r *Runtime) runUpkeep(ctx context.Context) {
	tick := time.NewTicker(upkeepPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(scanInterval):
		}
		if err := r.orphans.collect(ctx); err != nil {
			r.log.Warn("upkeep of the embedded runtime", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.restarted:
		case <-tick.C:
			if err := r.upkeep(); err != nil {
				r.log.Warn("upkeep of the embedded runtime", "error", err)
			}
		}
	}
}

// supervise restarts containerd whenever it exits unexpectedly.
func (r *Runtime) supervise(ctx context.Context) error {
	var delay time.Duration
	for {
		r.mu.Lock()
		c, stopped := r.running, r.stopped
		r.mu.Unlock()
		if stopped {
			<-ctx.Done()
			return nil
		}
		how, err := c.wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("embedded runtime: watch containerd: %w", err)
		}
		if delay, err = r.restart(ctx, c, how, delay); err != nil {
			return nil
		}
	}
}

// restart starts containerd after c exited, retries until it succeeds, and returns the last delay.
// Its error is that of ctx.
func (r *Runtime) restart(ctx context.Context, c *process, how string, delay time.Duration) (time.Duration, error) {
	uptime := time.Since(c.began)
	if !r.supervises(c) {
		return delay, nil
	}
	r.health.Set(fmt.Errorf("embedded runtime: %w: %s", errExited, how))
	r.log.Warn("containerd ended; starting it again", "pid", c.record.PID, "status", how)
	// The first try only starts containerd; retries check everything below the root directory
	// again.
	for start := r.start; ; start = r.ensure {
		delay = nextDelay(delay, uptime)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(delay):
		}
		if err := r.lock.Acquire(ctx, 1); err != nil {
			return 0, err
		}
		err := r.restartOnce(ctx, c, start)
		r.lock.Release(1)
		if err == nil {
			return delay, nil
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		r.health.Set(fmt.Errorf("embedded runtime: %w", err))
		r.log.Error("containerd does not come back", "error", err, "nextTry", nextDelay(delay, 0))
		uptime = 0
	}
}

// supervises reports whether c is still the supervised containerd: neither Stop nor Ensure has
// replaced it.
func (r *Runtime) supervises(c *process) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running == c && !r.stopped
}

func (r *Runtime) restartOnce(ctx context.Context, c *process, start func(context.Context) error) error {
	if !r.supervises(c) {
		return nil
	}
	if err := start(ctx); err != nil {
		return err
	}
	if err := c.close(); err != nil {
		r.log.Warn("let go of the old containerd", "error", err)
	}
	r.health.Set(nil)
	select {
	case r.restarted <- struct{}{}:
	default: // a scan is pending anyway
	}
	if r.cfg.Restarted != nil {
		r.cfg.Restarted()
	}
	return nil
}

// Delays between tries to start containerd.
const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 10 * time.Second
	// steady is how long containerd must have been running to be restarted without delay:
	// containers that write logs block meanwhile.
	steady = time.Minute
)

// nextDelay returns the delay before the next start, given the previous delay and how long
// containerd was running since.
func nextDelay(last, uptime time.Duration) time.Duration {
	switch {
	case uptime >= steady:
		return 0
	case last < firstDelay:
		return firstDelay
	default:
		return min(2*last, lastDelay)
	}
}

// upkeep rotates the log and removes unused bundles.
func (r *Runtime) upkeep() error {
	removed, err := removeOld(r.paths, "/proc")
	if len(removed) > 0 {
		r.log.Info("removed old bundles", "folders", removed)
	}
	return errors.Join(err, rotateLog(r.paths.log, maxLog))
}
