package eviction

import (
	"context"
	"time"

	"berth/internal/pod"
)

const (
	// settleProcesses and settleDisks are how long it is waited for what an evicted pod held beyond
	// its processes: tmpfs and files go with its volumes.
	settleProcesses, settleDisks = 3 * time.Second, 30 * time.Second
	// quietProcesses and quietDisks are how long nothing more must become free before the rest
	// counts as taken: layers, images and files are removed behind whoever asked for it.
	quietProcesses, quietDisks = 200 * time.Millisecond, 2 * time.Second
	// settleStep is how often both are looked for meanwhile.
	settleStep = 100 * time.Millisecond
)

// awaitFreed reads what is left until no threshold is met any more, or nothing more becomes free.
func (l *loop) awaitFreed(ctx context.Context, s Signal) (observed, error) {
	step := time.NewTicker(settleStep)
	defer step.Stop()
	var most uint64
	for grew := time.Now(); ; {
		left, err := l.measure(ctx)
		if err != nil || isRelieved(l.thresholds, left) {
			return left, err
		}
		if now := left[s].Available; now > most {
			most, grew = now, time.Now()
		}
		if time.Since(grew) >= l.quiet {
			return left, nil
		}
		select {
		case <-step.C:
		case <-ctx.Done():
			return left, ctx.Err()
		}
	}
}

// awaitLeaving waits for pods that are being evicted, or have ended, until what they held is free,
// within bounds. It returns false if there is nobody to wait for.
func (l *loop) awaitLeaving(ctx context.Context) bool {
	leaving := map[pod.UID]time.Time{}
	for _, p := range l.Pods() {
		if l.isLeaving(p.UID) && !l.isGranted(p.UID) {
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

// anyLeaves reports whether one of the pods that leave is still waited for.
func (l *loop) anyLeaves() bool {
	for uid, since := range l.leaving {
		if time.Since(since) < l.settle && l.isLeaving(uid) {
			return true
		}
	}
	return false
}

// isLeaving reports whether the pod is evicted or has ended, and not all of it is removed that is
// to be.
func (m *Manager) isLeaving(uid pod.UID) bool {
	at, known := m.Lifecycle(uid)
	return (known && at.Evicted || m.Ended(uid)) && at.State != pod.Finished
}
