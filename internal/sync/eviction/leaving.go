package eviction

import (
	"context"
	"time"

	"berth/internal/pod"
)

const (
	// settleProcesses and settleDisks limit the wait for resources that an evicted pod holds beyond
	// its processes: tmpfs and files are removed with its volumes.
	settleProcesses, settleDisks = 3 * time.Second, 30 * time.Second
	// quietProcesses and quietDisks are how long the available amount must not grow before the wait
	// ends: layers, images and files are removed asynchronously.
	quietProcesses, quietDisks = 200 * time.Millisecond, 2 * time.Second
	// settleStep is the poll interval of both waits.
	settleStep = 100 * time.Millisecond
)

// awaitFreed reads the available amounts until no threshold is met, or they stop growing.
func (l *loop) awaitFreed(ctx context.Context, s Signal) (observed, error) {
	step := time.NewTicker(settleStep)
	defer step.Stop()
	var most uint64
	for grewAt := time.Now(); ; {
		r, err := l.resources.measure(ctx)
		left := r.left
		if err != nil || isRelieved(l.evaluator.thresholds, left) {
			return left, err
		}
		if now := left[s].Available; now > most {
			most, grewAt = now, time.Now()
		}
		if time.Since(grewAt) >= l.quiet {
			return left, nil
		}
		select {
		case <-step.C:
		case <-ctx.Done():
			return left, ctx.Err()
		}
	}
}

// awaitLeaving waits, within limits, until pods that are being evicted or have terminated have
// released their resources. It returns false if there are none.
func (l *loop) awaitLeaving(ctx context.Context) bool {
	leaving := map[pod.UID]time.Time{}
	for _, p := range l.pods.list() {
		if l.pods.isLeaving(p.UID) && !l.isGranted(p.UID) {
			since, ok := l.leaving[p.UID]
			if !ok {
				since = time.Now()
			}
			leaving[p.UID] = since
		}
	}
	l.leaving = leaving
	step := time.NewTicker(settleStep)
	defer step.Stop()
	for waited := false; ; waited = true {
		if !l.anyLeaves() {
			return waited
		}
		select {
		case <-step.C:
		case <-ctx.Done():
			return true
		}
	}
}

// anyLeaves reports whether one of the leaving pods is still waited for.
func (l *loop) anyLeaves() bool {
	for uid, since := range l.leaving {
		if time.Since(since) < l.settle && l.pods.isLeaving(uid) {
			return true
		}
	}
	return false
}
