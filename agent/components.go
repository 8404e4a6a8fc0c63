package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// component is a part of the agent that runs.
type component struct {
	name string
	// run blocks until its context is done. If it returns earlier, the agent exits.
	run func(ctx context.Context) error
	// ready blocks until the next phase may start; nil: immediately.
	ready func(ctx context.Context) error
	// drain runs before run's context is cancelled in an orderly stop; nil: nothing.
	drain func(ctx context.Context) error
	// absent components are not part of this agent.
	absent bool
	// limit bounds how long run may take to return after its context is done.
	limit time.Duration
}

type phase struct {
	name       string
	components []component
}

// milestones are callbacks for the progress of the start.
type milestones struct {
	started func()          // a phase has started
	failed  func(err error) // a phase has failed
}

// runPhases starts the phases in order, runs them until ctx is done or a component returns, and
// stops them in reverse order. It returns the cause, nil for ctx, joined with errors of stopping.
func runPhases(ctx context.Context, phases []phase, told milestones, log *slog.Logger) error {
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	var stops []func() error
	stopAll := func() error {
		var errs []error
		for i := len(stops) - 1; i >= 0; i-- {
			errs = append(errs, stops[i]())
		}
		return errors.Join(errs...)
	}
	for _, ph := range phases {
		for _, c := range ph.components {
			stops = append(stops, startComponent(ctx, c, fail, log))
		}
		for _, c := range ph.components {
			if c.ready == nil {
				continue
			}
			began := time.Now()
			if err := waitReady(ctx, c, failed); err != nil {
				if err = ignoreCanceled(err); err != nil {
					told.failed(err)
				}
				return errors.Join(err, stopAll())
			}
			log.Debug("ready", "phase", ph.name, "component", c.name, "took", time.Since(began).Round(time.Millisecond))
		}
		told.started()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	return errors.Join(err, stopAll())
}

// ignoreCanceled returns nil for a requested stop; errors of stopping remain.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func waitReady(ctx context.Context, c component, failed <-chan error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.ready(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		return nil
	case err := <-failed:
		cancel()
		<-done
		return err
	}
}

// startComponent runs the component in its own context; the returned function drains and stops it.
func startComponent(parent context.Context, c component, fail func(error), log *slog.Logger) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := c.run(ctx)
		if err == nil {
			err = errEnded
		}
		if ctx.Err() == nil {
			fail(fmt.Errorf("%s ended: %w", c.name, err))
		}
	}()
	var once sync.Once
	return func() (err error) {
		once.Do(func() {
			if c.drain != nil {
				if e := c.drain(context.WithoutCancel(parent)); e != nil {
					err = fmt.Errorf("%s: %w", c.name, e)
				}
			}
			cancel()
			limit := c.limit
			if limit == 0 {
				limit = stopLimit
			}
			t := time.NewTimer(limit)
			defer t.Stop()
			select {
			case <-done:
			case <-t.C:
				log.Warn("component did not stop in time; it is left behind", "component", c.name, "limit", limit)
			}
		})
		return err
	}
}

var errEnded = errors.New("it must run as long as the agent")

// stopLimit bounds how long a component may take to stop: runtime calls in flight get this long.
const stopLimit = 2 * time.Second

// waitDone is run for a component that has only ready or drain.
func waitDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
