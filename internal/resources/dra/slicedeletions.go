package dra

import (
	"context"
	"log/slog"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"

	"berth/internal/cluster/kube"
)

const (
	// absence is how long a driver may be disconnected before its ResourceSlices are deleted.
	absence = 30 * time.Second
	// The back-off of failed deletions doubles from deleteRetry to deleteRetryMax.
	deleteRetry    = time.Second
	deleteRetryMax = 5 * time.Minute
)

// allDrivers stands for the drivers from before the agent's start.
const allDrivers = ""

type sliceDeletion struct {
	due    time.Time
	delay  time.Duration      // before the last retry
	cancel context.CancelFunc // of the try in progress; nil: none
	done   bool
}

// sliceDeletions are the scheduled deletions, by driver. It is safe for concurrent use.
type sliceDeletions struct {
	api     API // nil: there are no ResourceSlices
	node    string
	log     *slog.Logger
	drivers *drivers
	wake    chan struct{} // Manager.wake

	mu       sync.Mutex
	byDriver map[string]*sliceDeletion // guarded by mu
}

// sliceSelector selects the node's ResourceSlices of the driver, or of all drivers that are not
// connected.
// Differs from the kubelet: at its start, it also deletes the ResourceSlices of drivers that have
// connected meanwhile.
func sliceSelector(node, driver string, connected []string) kube.Selector {
	terms := []fields.Selector{fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, node)}
	if driver != allDrivers {
		terms = append(terms, fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, driver))
		connected = nil
	}
	for _, name := range connected {
		terms = append(terms, fields.OneTermNotEqualSelector(resourcev1.ResourceSliceSelectorDriver, name))
	}
	return kube.Selector{Fields: fields.AndSelectors(terms...)}
}

// plan schedules the deletion of the driver's ResourceSlices, unless it is scheduled or done
// already.
func (w *sliceDeletions) plan(driver string, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.api != nil && w.byDriver[driver] == nil {
		w.byDriver[driver] = &sliceDeletion{due: due}
	}
}

// drop cancels the deletion, because the driver has connected.
func (w *sliceDeletions) drop(driver string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.byDriver[driver]; v != nil && v.cancel != nil {
		v.cancel()
	}
	delete(w.byDriver, driver)
}

// dropDone forgets a finished deletion, because the driver may have published new ResourceSlices.
func (w *sliceDeletions) dropDone(driver string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.byDriver[driver]; v != nil && v.done {
		delete(w.byDriver, driver)
	}
}

// fire starts the deletions that are due with run, and returns when the next is due; zero: never.
func (w *sliceDeletions) fire(ctx context.Context, now time.Time, run func(func())) (next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for driver, v := range w.byDriver {
		switch {
		case v.done || v.cancel != nil:
		case v.due.After(now):
			next = earlier(next, v.due)
		default:
			var trying context.Context
			trying, v.cancel = context.WithCancel(ctx)
			run(func() { w.try(trying, driver, v) })
		}
	}
	return next
}

func (w *sliceDeletions) try(ctx context.Context, driver string, v *sliceDeletion) {
	err := w.api.DeleteResourceSlices(ctx, sliceSelector(w.node, driver, w.drivers.connectedNames()))
	if err != nil && ctx.Err() == nil {
		w.log.Warn("ResourceSlices not removed, which is tried again", "driver", driver, "error", err)
	}
	w.mu.Lock()
	v.cancel()
	v.cancel = nil
	if err == nil {
		v.done = true
	} else {
		v.delay = min(max(2*v.delay, deleteRetry), deleteRetryMax)
		v.due = time.Now().Add(v.delay)
	}
	w.mu.Unlock()
	wakeUp(w.wake)
}
