package controller

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

	"berth/internal/localapi/store"
)

// Store is what a controller reads: *store.Store.
type Store interface {
	Get(key store.Key) (store.Item, error)
	List(r store.Range, yield func(store.Item) bool) (revision uint64, err error)
	Since(ctx context.Context, revision uint64) ([]store.Change, error)
	Revision() uint64
}

var _ Store = (*store.Store)(nil)

// Logic is what a controller does. Its methods are called by Run, one after the other.
type Logic interface {
	// Begin forgets all that was seen: what is there is seen next.
	Begin()
	// See takes note of a change, and queues whom it may concern. at is when it was seen, zero for
	// an object that was there at the beginning.
	See(change store.Change, at time.Time)
	// Sync does for one object what is to be done for it now. An error has it looked at again
	// later; a conflict, with a change that is on its way, is no failure.
	Sync(ctx context.Context, key store.Key) error
	// Due queues what is due by now, and returns when something is next; zero for never.
	Due(now time.Time) (next time.Time)
}

// Config is what a Controller is made of.
type Config struct {
	// Name is what it is called in logs and errors.
	Name  string
	Store Store
	// Resources are those of which all objects are seen at the beginning, in that order. Of several
	// objects that are queued, those of the first are looked at first; then those of others.
	Resources []string
	Log       *slog.Logger
}

const (
	// callTime bounds one look at an object, with its writes.
	callTime = 30 * time.Second
	// firstRetry and lastRetry are how long after a failure an object is looked at again.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Controller looks at objects while Run runs. All but Health and Wake is for its Logic alone.
type Controller struct {
	cfg   Config
	logic Logic
	queue map[store.Key]bool
	retry map[store.Key]retry

	mu        sync.Mutex
	failure   error  // guarded by mu; of the last look that failed, nil when all are done
	woken     bool   // guarded by mu; Wake was called since the last Due
	interrupt func() // guarded by mu; ends the wait for changes
}

// retry is when an object is looked at again.
type retry struct {
	at    time.Time
	delay time.Duration
	err   error // why
}

// New returns a controller, which Run has work.
func New(cfg Config, logic Logic) *Controller { return &Controller{cfg: cfg, logic: logic} }

// Health is what a look has failed with that is to be tried again.
func (c *Controller) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Wake calls Due of the Logic: what it depends on besides the store has changed. It is safe for
// concurrent use.
func (c *Controller) Wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.woken = true
	if c.interrupt != nil {
		c.interrupt()
	}
}

// waiting returns the context of a wait for changes, which Wake ends; until is zero for no limit.
func (c *Controller) waiting(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until.IsZero() {
		ctx, c.interrupt = context.WithCancel(ctx)
	} else {
		ctx, c.interrupt = context.WithDeadline(ctx, until)
	}
	if c.woken {
		c.interrupt()
	}
	return ctx, c.interrupt
}

// Queue has objects be looked at.
func (c *Controller) Queue(keys ...store.Key) {
	for _, key := range keys {
		c.queue[key] = true
	}
}

// Forget has an object that is gone not be looked at again.
func (c *Controller) Forget(key store.Key) { delete(c.retry, key) }

// Later has an object be looked at twice as long from now as the last time, and returns how long
// that is.
func (c *Controller) Later(key store.Key, last time.Duration) time.Duration {
	return c.again(key, last, nil)
}

func (c *Controller) again(key store.Key, last time.Duration, err error) time.Duration {
	delay := min(max(firstRetry, 2*last), lastRetry)
	c.retry[key] = retry{time.Now().Add(delay), delay, err}
	return delay
}

// Run works until the context is done.
func (c *Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		revision, err := c.begin()
		if err == nil {
			err = c.follow(ctx, revision)
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, store.ErrCompacted): // it was busy for longer than the history reaches
			c.cfg.Log.Info("the " + c.cfg.Name + " looks at all objects again")
		default:
			return fmt.Errorf("%s: %w", c.cfg.Name, err)
		}
	}
	return nil
}

// begin looks at everything that is there.
func (c *Controller) begin() (revision uint64, err error) {
	c.queue, c.retry = map[store.Key]bool{}, map[store.Key]retry{}
	c.logic.Begin()
	revision = c.cfg.Store.Revision()
	for _, resource := range c.cfg.Resources {
		_, err := c.cfg.Store.List(store.Range{Resource: resource}, func(item store.Item) bool {
			c.logic.See(store.Change{Now: item, Before: store.Item{Key: item.Key}}, time.Time{})
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// follow works off what is to be looked at, and waits for more.
func (c *Controller) follow(ctx context.Context, revision uint64) error {
	for ctx.Err() == nil {
		next := c.due(time.Now())
		if c.work(ctx) {
			continue // what it has put off is due some time, too
		}
		waiting, cancel := c.waiting(ctx, next)
		changes, err := c.cfg.Store.Since(waiting, revision)
		cancel()
		ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
		if err != nil && (ctx.Err() != nil || !ended) {
			return err
		}
		now := time.Now()
		for _, change := range changes {
			c.logic.See(change, now)
			revision = change.Now.Revision
		}
	}
	return ctx.Err()
}

// due queues what is due, and returns when something is next; zero for never.
func (c *Controller) due(now time.Time) (next time.Time) {
	c.mu.Lock()
	c.woken = false
	c.mu.Unlock()
	next = c.logic.Due(now)
	for key, r := range c.retry {
		switch {
		case !r.at.After(now):
			c.queue[key] = true
		case next.IsZero() || r.at.Before(next):
			next = r.at
		}
	}
	return next
}

// work looks at all that is queued, in an order that is the same each time, and reports whether
// there was anything.
func (c *Controller) work(ctx context.Context) (some bool) {
	for _, key := range slices.SortedFunc(maps.Keys(c.queue), c.compare) {
		if some = true; ctx.Err() != nil {
			return some
		}
		delete(c.queue, key)
		err := c.sync(ctx, key)
		if err == nil || apierrors.IsNotFound(err) {
			delete(c.retry, key)
			continue
		}
		delay := c.again(key, c.retry[key].delay, err)
		if !apierrors.IsConflict(err) {
			c.cfg.Log.Warn("the "+c.cfg.Name+" will try again", "object", key.String(), "after", delay, "error", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = nil
	for _, key := range slices.SortedFunc(maps.Keys(c.retry), c.compare) {
		if err := c.retry[key].err; err != nil && !apierrors.IsConflict(err) {
			c.failure = fmt.Errorf("%s: %s: %w", c.cfg.Name, key, err)
			break
		}
	}
	return some
}

func (c *Controller) sync(ctx context.Context, key store.Key) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return c.logic.Sync(ctx, key)
}

func (c *Controller) compare(a, b store.Key) int {
	rank := func(k store.Key) int {
		if at := slices.Index(c.cfg.Resources, k.Resource); at >= 0 {
			return at
		}
		return len(c.cfg.Resources)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
