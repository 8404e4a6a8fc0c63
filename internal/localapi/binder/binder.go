package binder

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

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
}

// Config is what a Binder is made of.
type Config struct {
	Store  Store
	Writer Writer
	// NodeName is the one node that there is.
	NodeName string
	Log      *slog.Logger
}

const (
	// callTime bounds one look at an object, with its writes.
	callTime = 30 * time.Second
	// firstRetry and lastRetry are how long after a failure an object is looked at again.
	firstRetry, lastRetry = time.Second, time.Minute
)

// The resources that matter here, as the store has them.
const (
	podsResource    = "pods"
	claimsResource  = "persistentvolumeclaims"
	volumesResource = "persistentvolumes"
	classesResource = "storageclasses.storage.k8s.io"
	nodesResource   = "nodes"
	eventsResource  = "events"
)

// Binder binds while Run runs.
type Binder struct {
	cfg   Config
	index index
	queue map[store.Key]bool // to be looked at
	retry map[store.Key]retry
	told  map[store.Key]told // the newest event about each object

	mu      sync.Mutex
	failure error // guarded by mu; of the last look that failed, nil when all are done
}

// retry is a look that has failed.
type retry struct {
	at    time.Time
	delay time.Duration
	err   error
}

// New returns a binder, which Run has work.
func New(cfg Config) *Binder { return &Binder{cfg: cfg} }

// Health is what a look has failed with that is to be tried again.
func (b *Binder) Health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure
}

// Run works until the context is done.
func (b *Binder) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		revision, err := b.begin()
		if err == nil {
			err = b.follow(ctx, revision)
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, store.ErrCompacted): // it was busy for longer than the history reaches
			b.cfg.Log.Info("the binder of volumes looks at all objects again")
		default:
			return fmt.Errorf("binder of volumes: %w", err)
		}
	}
	return nil
}

// begin looks at everything that is there.
func (b *Binder) begin() (revision uint64, err error) {
	b.index = newIndex()
	b.queue, b.retry, b.told = map[store.Key]bool{}, map[store.Key]retry{}, map[store.Key]told{}
	revision = b.cfg.Store.Revision()
	for _, resource := range []string{podsResource, volumesResource, claimsResource} {
		_, err := b.cfg.Store.List(store.Range{Resource: resource}, func(item store.Item) bool {
			b.see(store.Change{Now: item, Before: store.Item{Key: item.Key}})
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// follow works off what is to be looked at, and waits for more.
func (b *Binder) follow(ctx context.Context, revision uint64) error {
	for {
		b.work(ctx)
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if next, ok := b.deadline(); ok {
			waiting, cancel = context.WithDeadline(ctx, next)
		}
		changes, err := b.cfg.Store.Since(waiting, revision)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded):
			b.due(time.Now())
		default:
			return err
		}
		for _, change := range changes {
			b.see(change)
			revision = change.Now.Revision
		}
	}
}

// deadline is when an object is looked at again that no change may tell of.
func (b *Binder) deadline() (next time.Time, ok bool) {
	for _, r := range b.retry {
		if next.IsZero() || r.at.Before(next) {
			next = r.at
		}
	}
	return next, !next.IsZero()
}

// due queues what is due.
func (b *Binder) due(now time.Time) {
	for key, r := range b.retry {
		if !r.at.After(now) {
			b.queue[key] = true
		}
	}
}

// work looks at all that is queued: at pods, which make claims, then at volumes, then at the claims
// that look for one.
func (b *Binder) work(ctx context.Context) {
	for _, key := range slices.SortedFunc(maps.Keys(b.queue), compareKeys) {
		if ctx.Err() != nil {
			return
		}
		delete(b.queue, key)
		err := b.sync(ctx, key)
		// A conflict says that a change is on its way, and so does an object that is gone.
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			delete(b.retry, key)
			continue
		}
		b.again(key, b.retry[key].delay, err)
		b.cfg.Log.Warn("the binder of volumes will try again", "object", key.String(), "after", b.retry[key].delay, "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = nil
	for _, key := range slices.SortedFunc(maps.Keys(b.retry), compareKeys) {
		if err := b.retry[key].err; err != nil {
			b.failure = fmt.Errorf("binder of volumes: %s: %w", key, err)
			break
		}
	}
}

// again has an object be looked at later than after the delay of the last time.
func (b *Binder) again(key store.Key, last time.Duration, err error) {
	delay := min(max(firstRetry, 2*last), lastRetry)
	b.retry[key] = retry{time.Now().Add(delay), delay, err}
}

var order = []string{podsResource, volumesResource, claimsResource}

func compareKeys(x, y store.Key) int {
	return cmp.Or(cmp.Compare(slices.Index(order, x.Resource), slices.Index(order, y.Resource)),
		cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}

// sync does for one object what is to be done for it now.
func (b *Binder) sync(ctx context.Context, key store.Key) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	switch key.Resource {
	case podsResource:
		return b.syncPod(ctx, key)
	case volumesResource:
		return b.syncVolume(ctx, key)
	}
	return b.syncClaim(ctx, key)
}

// get reads an object; the zero value if it is not there.
func get[T kinds.Object](b *Binder, key store.Key) (T, error) {
	var none T
	item, err := b.cfg.Store.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	return decode[T](item)
}

// list reads the objects of a range, by namespace and name.
func list[T kinds.Object](b *Binder, r store.Range) (all []T, err error) {
	var failed error
	_, err = b.cfg.Store.List(r, func(item store.Item) bool {
		var o T
		if o, failed = decode[T](item); failed == nil {
			all = append(all, o)
		}
		return failed == nil
	})
	return all, cmp.Or(err, failed)
}

func decode[T kinds.Object](item store.Item) (T, error) {
	var none T
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		return none, fmt.Errorf("%s: %w", item.Key, err)
	}
	typed, ok := o.(T)
	if !ok {
		return none, fmt.Errorf("%s: it is a %T", item.Key, o)
	}
	return typed, nil
}
