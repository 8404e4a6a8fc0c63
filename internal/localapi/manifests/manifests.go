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

// Config configures a Keeper.
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

// Keeper reconciles the store with the objects of manifests. Set sets the desired state; Run
// retries what failed.
type Keeper struct {
	cfg Config

	turn    sync.Mutex // held by the pass in progress
	set     bool       // guarded by turn; Set was called
	defined Defined    // guarded by turn

	mu        sync.Mutex
	failed    map[store.Key]error // guarded by mu; the errors of the last pass
	delay     time.Duration       // guarded by mu; 0 waits only for changes
	at        time.Time           // guarded by mu; time of the retry, if there is a delay
	seen      uint64              // guarded by mu; the last revision that was processed
	interrupt func()              // guarded by mu; makes Run read the fields above again
}

// New returns a Keeper without desired state: it deletes nothing before Set.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg, interrupt: func() {}} }

// Set applies the objects of manifests, all of which are in d, and deletes other marked objects.
// The error names each object that could not be written, its file and the remedy; all others are
// written. Run retries failures, and Health reports them until they are resolved.
func (k *Keeper) Set(ctx context.Context, d Defined) error {
	k.turn.Lock()
	defer k.turn.Unlock()
	k.set, k.defined = true, d
	k.pass(ctx, 0)
	k.mu.Lock()
	k.interrupt()
	k.mu.Unlock()
	return k.Health()
}

// Health returns the errors of the last pass.
func (k *Keeper) Health() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(k.failed), compareKeys) {
		errs = append(errs, k.failed[key])
	}
	return errors.Join(errs...)
}

func compareKeys(a, b store.Key) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Run retries what failed, when a failed object changes or after a delay, until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		waiting, stop, seen := k.wait(ctx)
		changes, err := k.cfg.Store.Since(waiting, seen)
		stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, store.ErrCompacted), waiting.Err() != nil:
			if delay, due := k.due(changes, err); due {
				k.turn.Lock()
				k.pass(ctx, delay)
				k.turn.Unlock()
			}
		default:
			return fmt.Errorf("objects of manifests: %w", err)
		}
	}
}

// wait returns a context that is done when a retry is due or Set was called, and the revision to
// wait for changes after.
func (k *Keeper) wait(ctx context.Context) (waiting context.Context, stop func(), seen uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	waiting, k.interrupt = context.WithCancel(ctx)
	stop = k.interrupt
	if k.delay > 0 {
		waiting, stop = context.WithDeadline(waiting, k.at)
	}
	return waiting, stop, k.seen
}

// due reports whether a pass is due, and the last delay.
func (k *Keeper) due(changes []store.Change, err error) (delay time.Duration, due bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	due = errors.Is(err, store.ErrCompacted) || k.delay > 0 && !k.at.After(time.Now())
	for _, c := range changes {
		_, failed := k.failed[c.Now.Key]
		due = due || failed && c.Now.Revision > k.seen
		k.seen = max(k.seen, c.Now.Revision)
	}
	return k.delay, due
}

// pass runs one pass. k.turn is held; delay is the last delay.
func (k *Keeper) pass(ctx context.Context, delay time.Duration) {
	p := pass{Config: k.cfg, defined: k.defined, failed: map[store.Key]error{}}
	seen := k.cfg.Store.Revision()
	if k.set {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		p.run(ctx)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen, k.delay = seen, 0
	if p.retry {
		k.delay = min(max(firstRetry, 2*delay), lastRetry)
		k.at = time.Now().Add(k.delay)
	}
	for key, err := range p.failed {
		if old := k.failed[key]; old == nil || old.Error() != err.Error() {
			k.cfg.Log.Warn("object of a manifest is not as the manifest says", "error", err)
		}
	}
	k.failed = p.failed
}
