package garbage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// Writer writes objects as a client of the API does.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Delete deletes an object as the options say.
	Delete(ctx context.Context, o Ref, how metav1.DeleteOptions) error
	// Patch carries out a JSON merge patch of an object or, if one is named, of its subresource.
	Patch(ctx context.Context, o Ref, subresource string, patch []byte) error
	// Finalize writes the subresource finalize of a namespace.
	Finalize(ctx context.Context, ns *v1.Namespace) error
}

// Ref names an object.
type Ref struct {
	Kind      *kinds.Kind
	Namespace string
	Name      string
}

// Config is what a Collector is made of.
type Config struct {
	Store  Store
	Writer Writer
	// Defaults are the objects that each namespace has: the service account default, the ConfigMap
	// kube-root-ca.crt. nil: none.
	Defaults func(namespace string) []kinds.Object
	Log      *slog.Logger
}

const (
	// eventLife is how long after its last change an event is kept, as kube-apiserver does.
	eventLife = time.Hour
	// callTime bounds one write.
	callTime = 30 * time.Second
	// firstRetry and lastRetry are how long after a failure a write is tried again.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Collector takes garbage away while Run runs.
type Collector struct {
	cfg   Config
	graph *graph

	queue       map[store.Key]bool      // to be looked at
	events      map[store.Key]time.Time // when each is old
	oldest      time.Time               // not after the first of them; zero if there are none
	retries     map[store.Key]retry
	terminating map[string]bool    // namespaces
	claims      map[store.Key]bool // that are deleted, and protected

	mu      sync.Mutex
	failure error // guarded by mu; of the last write that failed, nil when all are done
}

// retry is a write that has failed.
type retry struct {
	at    time.Time
	delay time.Duration
	err   error
}

// New returns a collector, which Run has work.
func New(cfg Config) *Collector { return &Collector{cfg: cfg} }

// Health is what a write has failed with that is to be tried again.
func (c *Collector) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Run works until the context is done.
func (c *Collector) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		revision, err := c.begin()
		if err == nil {
			err = c.follow(ctx, revision)
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, store.ErrCompacted): // it was busy for longer than the history reaches
			c.cfg.Log.Info("garbage collection looks at all objects again")
		default:
			return fmt.Errorf("garbage collection: %w", err)
		}
	}
	return nil
}

// begin looks at everything that is there.
func (c *Collector) begin() (revision uint64, err error) {
	c.graph = newGraph()
	c.queue, c.events, c.retries = map[store.Key]bool{}, map[store.Key]time.Time{}, map[store.Key]retry{}
	c.terminating, c.claims, c.oldest = map[string]bool{}, map[store.Key]bool{}, time.Time{}
	revision = c.cfg.Store.Revision()
	for _, resource := range stored() {
		_, err := c.cfg.Store.List(store.Range{Resource: resource}, func(item store.Item) bool {
			c.see(nil, c.read(item))
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// follow works off what is to be looked at, and waits for more.
func (c *Collector) follow(ctx context.Context, revision uint64) error {
	for {
		if err := c.work(ctx); err != nil {
			return err
		}
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if next, ok := c.deadline(); ok {
			waiting, cancel = context.WithDeadline(ctx, next)
		}
		changes, err := c.cfg.Store.Since(waiting, revision)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded):
			c.due(time.Now())
		default:
			return err
		}
		for _, change := range changes {
			before, now := c.read(change.Before), c.read(change.Now)
			if now != nil {
				now.written = time.Now()
			}
			c.see(before, now)
			revision = change.Now.Revision
		}
	}
}

// read is decode for what is seen: an object that cannot be read is left alone. Who would be
// deleted for want of it is not, as whoever looks at it then fails.
func (c *Collector) read(item store.Item) *object {
	o, err := decode(item)
	if err != nil {
		c.cfg.Log.Error("garbage collection leaves alone what it cannot read", "error", err)
	}
	return o
}

// deadline is when something is due that no change tells of.
func (c *Collector) deadline() (next time.Time, ok bool) {
	next = c.oldest
	for _, r := range c.retries {
		if next.IsZero() || r.at.Before(next) {
			next = r.at
		}
	}
	return next, !next.IsZero()
}

// due queues what is due.
func (c *Collector) due(now time.Time) {
	for key, r := range c.retries {
		if !r.at.After(now) {
			c.queue[key] = true
		}
	}
	if c.oldest.IsZero() || c.oldest.After(now) {
		return
	}
	c.oldest = time.Time{}
	for key, at := range c.events {
		if at.After(now) {
			c.expect(at)
		} else {
			c.queue[key] = true
		}
	}
}

// expect has an event be old at a time.
func (c *Collector) expect(at time.Time) {
	if c.oldest.IsZero() || at.Before(c.oldest) {
		c.oldest = at
	}
}

// see takes note of a change and queues whom it may concern. before is nil for what is new, now for
// what is gone.
func (c *Collector) see(before, now *object) {
	o := now
	if o == nil {
		o = before
	}
	if o == nil {
		return
	}
	key := o.key
	gone := now == nil || before != nil && before.uid() != now.uid()
	for owner := range c.graph.replace(before, now) {
		c.queue[owner] = true // it may wait for this one
	}
	if before != nil && (gone || now.deleting() && !before.deleting()) {
		for dependant := range c.graph.dependants[before.uid()] {
			c.queue[dependant] = true
			c.graph.seek(dependant, before.uid()) // it was in its place
		}
	}
	switch {
	case now == nil:
		delete(c.retries, key)
		delete(c.claims, key)
	case now.deleting() || len(now.meta.OwnerReferences) > 0:
		c.queue[key] = true
	}
	c.seeKind(key, now)
}

// seeKind is what a change means besides for its kind.
func (c *Collector) seeKind(key store.Key, now *object) {
	switch key.Resource {
	case "namespaces":
		delete(c.terminating, key.Name)
		if now != nil {
			c.queue[key] = true
			if now.deleting() {
				c.terminating[key.Name] = true
			}
		}
	case "events":
		delete(c.events, key)
		if now != nil {
			// At full minutes, so that many that are old go at one time.
			at := now.changed().Add(eventLife).Truncate(time.Minute).Add(time.Minute)
			c.events[key] = at
			c.expect(at)
		}
	case "persistentvolumeclaims":
		if now != nil && now.deleting() && slices.Contains(now.meta.Finalizers, claimProtection) {
			c.claims[key] = true
		}
	case "pods":
		for claim := range c.claims {
			if claim.Namespace == key.Namespace {
				c.queue[claim] = true
			}
		}
	}
	if c.terminating[key.Namespace] || now == nil && (key.Resource == "serviceaccounts" || key.Resource == "configmaps") {
		c.queue[store.Key{Resource: "namespaces", Name: key.Namespace}] = true
	}
}

// work looks at all that is queued, in an order that is the same each time.
func (c *Collector) work(ctx context.Context) error {
	for _, key := range slices.SortedFunc(maps.Keys(c.queue), compareKeys) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		delete(c.queue, key)
		err := c.sync(ctx, key)
		if err == nil || apierrors.IsNotFound(err) {
			delete(c.retries, key)
			continue
		}
		delay := min(max(firstRetry, 2*c.retries[key].delay), lastRetry)
		c.retries[key] = retry{time.Now().Add(delay), delay, err}
		if !apierrors.IsConflict(err) { // a conflict says that a change is on its way
			c.cfg.Log.Warn("garbage collection will try again", "object", key.String(), "after", delay, "error", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = nil
	for _, key := range slices.SortedFunc(maps.Keys(c.retries), compareKeys) {
		if r := c.retries[key]; !apierrors.IsConflict(r.err) {
			c.failure = fmt.Errorf("garbage collection: %s: %w", key, r.err)
			break
		}
	}
	return nil
}

// sync does for one object what is to be done for it now.
func (c *Collector) sync(ctx context.Context, key store.Key) error {
	o, err := c.get(key)
	if err != nil || o == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	switch key.Resource {
	case "namespaces":
		if done, err := c.syncNamespace(ctx, o); done || err != nil {
			return err
		}
	case "persistentvolumeclaims", "persistentvolumes":
		if done, err := c.unprotect(ctx, o); done || err != nil {
			return err
		}
	case "events":
		if at, ok := c.events[key]; ok && !at.After(time.Now()) {
			return c.delete(ctx, o, metav1.DeletePropagationBackground)
		}
	}
	return c.collect(ctx, o)
}

// get reads an object; nil if it is not there.
func (c *Collector) get(key store.Key) (*object, error) {
	item, err := c.cfg.Store.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode(item)
}

func (c *Collector) delete(ctx context.Context, o *object, policy metav1.DeletionPropagation) error {
	uid, version := o.uid(), o.version()
	c.cfg.Log.Debug("garbage collection deletes", "object", o.key.String(), "propagation", policy)
	return c.cfg.Writer.Delete(ctx, o.ref(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &policy,
	})
}

// uidSet is a set of objects, by their uid.
type uidSet map[types.UID]bool
