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

// Store is the part of *store.Store that a controller uses.
type Store interface {
	Get(key store.Key) (store.Item, error)
	List(r store.Range, yield func(store.Item) bool) (revision uint64, err error)
	Since(ctx context.Context, revision uint64) ([]store.Change, error)
	Revision() uint64
}

var _ Store = (*store.Store)(nil)

// Logic is the implementation of a controller. Run calls its methods sequentially.
type Logic interface {
	// Begin resets the state: See is called next with all existing objects.
	Begin()
	// See processes a change, and queues the objects that it may concern. at is when it was seen,
	// zero for an object that existed at the start.
	See(change store.Change, at time.Time)
	// Sync reconciles one object. After an error it is retried; a conflict, after which a change
	// follows, is not reported.
	Sync(ctx context.Context, key store.Key) error
	// Due queues what is due by now, and returns when something is due next; zero for never.
	Due(now time.Time) (next time.Time)
}

// Config configures a Controller.
type Config struct {
	// Name is the controller's name in logs and errors.
	Name  string
	Store Store
	// Resources are those whose objects are listed at the start, in that order. Queued objects are
	// synced in that order too; those of other resources last.
	Resources []string
	Log       *slog.Logger
}

const (
	// callTime bounds one sync of an object, with its writes.
	callTime = 30 * time.Second
	// firstRetry and lastRetry are the minimum and maximum delay of a retry.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Controller syncs objects while Run runs. Only its Logic may call methods other than Run, Health
// and Wake.
type Controller struct {
	cfg   Config
	logic Logic
	queue map[store.Key]bool
	retry map[store.Key]retry

	mu        sync.Mutex
	failure   error  // guarded by mu; of the first object to be retried, nil if there is none
	woken     bool   // guarded by mu; Wake was called since the last Due
	interrupt func() // guarded by mu; ends the wait for changes
}

// retry is a scheduled sync of an object.
type retry struct {
	at    time.Time
	delay time.Duration
	err   error // the cause
}

// New returns a controller. Run runs it.
func New(cfg Config, logic Logic) *Controller { return &Controller{cfg: cfg, logic: logic} }

// Health returns the error of a sync that is to be retried.
func (c *Controller) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Wake makes Run call Due of the Logic: state outside the store has changed. It is safe for
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

// Queue queues objects for Sync.
func (c *Controller) Queue(keys ...store.Key) {
	for _, key := range keys {
		c.queue[key] = true
	}
}

// Forget cancels the retry of a deleted object.
func (c *Controller) Forget(key store.Key) { delete(c.retry, key) }

// Later schedules a sync after twice the last delay, within the limits of retries, and returns the
// delay.
func (c *Controller) Later(key store.Key, last time.Duration) time.Duration {
	return c.again(key, last, nil)
}

func (c *Controller) again(key store.Key, last time.Duration, err error) time.Duration {
	delay := min(max(firstRetry, 2*last), lastRetry)
	c.retry[key] = retry{time.Now().Add(delay), delay, err}
	return delay
}

// Run runs the controller until the context is done.
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

// begin lists the existing objects.
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

// follow syncs queued objects, and waits for changes and deadlines.
func (c *Controller) follow(ctx context.Context, revision uint64) error {
	for ctx.Err() == nil {
		next := c.due(time.Now())
		if c.work(ctx) {
			continue // its retries may be due
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

// due queues what is due, and returns when something is due next; zero for never.
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

// work syncs the queued objects, in a stable order, and reports whether there were any.
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
