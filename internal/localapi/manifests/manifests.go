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

// Store is what it reads: *store.Store.
type Store interface {
	Get(key store.Key) (store.Item, error)
	List(r store.Range, yield func(store.Item) bool) (revision uint64, err error)
	Since(ctx context.Context, revision uint64) ([]store.Change, error)
	Revision() uint64
}

// Writer writes objects unjudged, as the agent does. Its errors are those of the API.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Update replaces an object and its status, if it has the uid and the resourceVersion of o.
	Update(ctx context.Context, o kinds.Object) error
	// Delete deletes an object, if it has the uid and the resourceVersion of o, once its finalizers
	// are gone.
	Delete(ctx context.Context, o kinds.Object) error
}

// Config is what a Keeper is made of.
type Config struct {
	Store  Store
	Writer Writer
	Log    *slog.Logger
}

// Object is one that a manifest defines, complete and valid. It is shared and never changed.
type Object struct {
	kinds.Object
	Path string // of the file or URL that defines it
}

// Defined is all that manifests define, and the namespaces of their pods.
type Defined struct {
	Objects    []Object
	Namespaces []string
	// Incomplete says that some manifests were not read yet: nothing is removed that may be theirs.
	Incomplete bool
}

const (
	// callTime bounds all writes of one pass.
	callTime = 30 * time.Second
	// firstRetry and lastRetry are how long after a failure what failed is tried again.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Keeper keeps the objects of manifests. Set gives it what they define; Run tries again what could
// not be done.
type Keeper struct {
	cfg Config

	turn    sync.Mutex // of who compares and writes
	set     bool       // guarded by turn; Set was called
	defined Defined    // guarded by turn

	mu        sync.Mutex
	failed    map[store.Key]error // guarded by mu; what could not be done
	delay     time.Duration       // guarded by mu; 0 if only a change is waited for
	at        time.Time           // guarded by mu; when it is tried again, if there is a delay
	seen      uint64              // guarded by mu; all up to it was looked at
	interrupt func()              // guarded by mu; has Run look at the above again
}

// New returns a Keeper that has been given nothing: it removes nothing before Set.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg, interrupt: func() {}} }

// Set makes the store have the objects of manifests as they are now, and no others that are
// marked. It is given all of them each time, also the first. The error names each object that
// could not be written, its file and what to do; all others are written. It is tried again while
// Run runs, and is that of Health until it is done.
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

// Health is what could not be done.
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

// Run tries again what could not be done, when what stands in its way changes, or after a while;
// until the context is done.
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

// wait returns the context that ends when Run has to look again without a change, and the revision
// after which a change matters.
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

// due says whether what was waited for has come, and what the delay of the last failure was.
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

// pass does what is to be done now. k.turn is held; delay is how long the last failure was left
// alone.
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
