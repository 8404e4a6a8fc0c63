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
	// absence is how long a driver may have no connection before what it offers is withdrawn.
	absence = 30 * time.Second
	// Tries to withdraw are that far apart, doubling.
	wipeRetry    = time.Second
	wipeRetryMax = 5 * time.Minute
)

// allDrivers stands for what drivers of before the agent's start have left.
const allDrivers = ""

// wipe is a removal of ResourceSlices.
type wipe struct {
	due    time.Time
	delay  time.Duration      // before the last try
	cancel context.CancelFunc // of one that is under way; nil: none is
	done   bool
}

// wipes are the removals to come, by driver. It is safe for concurrent use.
type wipes struct {
	api  API // nil: there is nothing to remove
	node string
	log  *slog.Logger
	// connected returns the drivers that are; it is asked at each try.
	connected func() []string
	wake      func()

	mu       sync.Mutex
	byDriver map[string]*wipe // guarded by mu
}

// sliceSelector returns what the driver, or all but those that are connected, offer on the node.
// Differs from the kubelet: at its start, it withdraws what a driver offers that is connected by
// then.
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

// plan has what the driver offers removed at a time, if that is not planned already or done.
func (w *wipes) plan(driver string, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.api != nil && w.byDriver[driver] == nil {
		w.byDriver[driver] = &wipe{due: due}
	}
}

// drop says that the driver is back: what it offers stays.
func (w *wipes) drop(driver string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.byDriver[driver]; v != nil && v.cancel != nil {
		v.cancel()
	}
	delete(w.byDriver, driver)
}

// dropDone says that the driver may have offered something anew.
func (w *wipes) dropDone(driver string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.byDriver[driver]; v != nil && v.done {
		delete(w.byDriver, driver)
	}
}

// fire begins the removals that are due, each with run, and returns when the next is due; zero for
// never.
func (w *wipes) fire(ctx context.Context, now time.Time, run func(func())) (next time.Time) {
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

// try is one try.
func (w *wipes) try(ctx context.Context, driver string, v *wipe) {
	err := w.api.DeleteResourceSlices(ctx, sliceSelector(w.node, driver, w.connected()))
	if err != nil && ctx.Err() == nil {
		w.log.Warn("ResourceSlices not removed, which is tried again", "driver", driver, "error", err)
	}
	w.mu.Lock()
	v.cancel()
	v.cancel = nil
	if err == nil {
		v.done = true
	} else {
		v.delay = min(max(2*v.delay, wipeRetry), wipeRetryMax)
		v.due = time.Now().Add(v.delay)
	}
	w.mu.Unlock()
	w.wake()
}
