package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Store is the part of *store.Store that is used.
type Store interface {
	Get(key store.Key) (store.Item, error)
	List(r store.Range, yield func(store.Item) bool) (revision uint64, err error)
	Since(ctx context.Context, revision uint64) ([]store.Change, error)
	Revision() uint64
}

// Writer makes trusted writes. Its errors are API errors.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Update replaces an object and its status, if the uid and the resourceVersion match o.
	Update(ctx context.Context, o kinds.Object) error
	// Delete deletes an object, if the uid and the resourceVersion match o, once its finalizers are
	// removed.
	Delete(ctx context.Context, o kinds.Object) error
}

// Config configures an Applier.
type Config struct {
	Store  Store
	Writer Writer
	Log    *slog.Logger
}

// Object is an object of a manifest, complete and valid. It is shared and must not be modified.
type Object struct {
	kinds.Object
	Path string // of the file or URL that defines it
}

// Defined is all objects that manifests define, and the namespaces of their pods.
type Defined struct {
	Objects    []Object
	Namespaces []string
	// Incomplete is set if some manifests were not read yet. Nothing is deleted then.
	Incomplete bool
}

const (
	// callTime bounds all writes of one pass.
	callTime = 30 * time.Second
	// firstRetry and lastRetry are the minimum and maximum delay of a retry.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Applier reconciles the store with the objects of manifests. Set sets the desired state; Run
// retries what failed.
type Applier struct {
	cfg Config

	passMu  sync.Mutex // held by the pass in progress
	set     bool       // guarded by passMu; Set was called
	defined Defined    // guarded by passMu

	mu        sync.Mutex
	failed    map[store.Key]error // guarded by mu; the errors of the last pass
	delay     time.Duration       // guarded by mu; 0 waits only for changes
	at        time.Time           // guarded by mu; time of the retry, if there is a delay
	seen      uint64              // guarded by mu; the last revision that was processed
	interrupt func()              // guarded by mu; makes Run read the fields above again
}

// New returns an Applier without desired state: it deletes nothing before Set.
func New(cfg Config) *Applier { return &Applier{cfg: cfg, interrupt: func() {}} }

// Set applies the objects of manifests, all of which are in d, and deletes other marked objects.
// The error names each object that could not be written, its file and the remedy; all others are
// written. Run retries failures, and Health reports them until they are resolved.
func (a *Applier) Set(ctx context.Context, d Defined) error {
	a.passMu.Lock()
	defer a.passMu.Unlock()
	a.set, a.defined = true, d
	a.pass(ctx, 0)
	a.mu.Lock()
	a.interrupt()
	a.mu.Unlock()
	return a.Health()
}

// Health returns the errors of the last pass.
func (a *Applier) Health() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(a.failed), compareKeys) {
		errs = append(errs, a.failed[key])
	}
	return errors.Join(errs...)
}

func compareKeys(a, b store.Key) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Run retries what failed, when a failed object changes or after a delay, until ctx is done.
func (a *Applier) Run(ctx context.Context) error {
	for {
		waiting, stop, seen := a.wait(ctx)
		changes, err := a.cfg.Store.Since(waiting, seen)
		stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, store.ErrCompacted), waiting.Err() != nil:
			if delay, due := a.due(changes, err); due {
				a.passMu.Lock()
				a.pass(ctx, delay)
				a.passMu.Unlock()
			}
		default:
			return fmt.Errorf("objects of manifests: %w", err)
		}
	}
}

// wait returns a context that is done when a retry is due or Set was called, and the revision to
// wait for changes after.
func (a *Applier) wait(ctx context.Context) (waiting context.Context, stop func(), seen uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting, a.interrupt = context.WithCancel(ctx)
	stop = a.interrupt
	if a.delay > 0 {
		waiting, stop = context.WithDeadline(waiting, a.at)
	}
	return waiting, stop, a.seen
}

// due reports whether a pass is due, and the last delay.
func (a *Applier) due(changes []store.Change, err error) (delay time.Duration, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due = errors.Is(err, store.ErrCompacted) || a.delay > 0 && !a.at.After(time.Now())
	for _, c := range changes {
		_, failed := a.failed[c.Now.Key]
		due = due || failed && c.Now.Revision > a.seen
		a.seen = max(a.seen, c.Now.Revision)
	}
	return a.delay, due
}

// pass runs one pass. a.passMu is held; delay is the last delay.
func (a *Applier) pass(ctx context.Context, delay time.Duration) {
	p := pass{Config: a.cfg, defined: a.defined, failed: map[store.Key]error{}}
	seen := a.cfg.Store.Revision()
	if a.set {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		p.run(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.delay = seen, 0
	if p.retry {
		a.delay = min(max(firstRetry, 2*delay), lastRetry)
		a.at = time.Now().Add(a.delay)
	}
	for key, err := range p.failed {
		if old := a.failed[key]; old == nil || old.Error() != err.Error() {
			a.cfg.Log.Warn("object of a manifest is not as the manifest says", "error", err)
		}
	}
	a.failed = p.failed
}
