package gc

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/controller"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Writer writes objects as a client of the API does.
type Writer interface {
	Create(ctx context.Context, o kinds.Object) error
	// Delete deletes an object with the given options.
	Delete(ctx context.Context, o Ref, how metav1.DeleteOptions) error
	// Patch applies a JSON merge patch to an object or, if one is named, to its subresource.
	Patch(ctx context.Context, o Ref, subresource string, patch []byte) error
	// Finalize writes the subresource finalize of a namespace.
	Finalize(ctx context.Context, ns *v1.Namespace) error
}

// Ref identifies an object.
type Ref struct {
	Kind      *kinds.Kind
	Namespace string
	Name      string
}

// Config configures a Collector.
type Config struct {
	Store  controller.Store
	Writer Writer
	// Defaults returns the objects that each namespace has: the service account default, the
	// ConfigMap kube-root-ca.crt. nil: none.
	Defaults func(namespace string) []kinds.Object
	Log      *slog.Logger
}

// eventLife is how long an event is stored after its last change, as in kube-apiserver.
const eventLife = time.Hour

// Collector collects garbage while Run runs. Health returns the error of a sync that is to be
// retried.
type Collector struct {
	*controller.Controller
	cfg   Config
	graph *graph

	events      map[store.Key]time.Time // when each expires
	oldest      time.Time               // not after the first expiry; zero if there are no events
	terminating map[string]bool         // namespaces
	claims      map[store.Key]bool      // deleted ones with the protection finalizer
}

// New returns a collector. Run runs it.
func New(cfg Config) *Collector {
	c := &Collector{cfg: cfg}
	c.Controller = controller.New(controller.Config{Name: "garbage collection", Store: cfg.Store, Resources: stored(), Log: cfg.Log}, c)
	return c
}

// Begin implements controller.Logic.
func (c *Collector) Begin() {
	c.graph = newGraph()
	c.events, c.oldest = map[store.Key]time.Time{}, time.Time{}
	c.terminating, c.claims = map[string]bool{}, map[store.Key]bool{}
}

// See implements controller.Logic.
func (c *Collector) See(change store.Change, at time.Time) {
	before, now := c.read(change.Before), c.read(change.Now)
	if now != nil {
		now.written = at
	}
	c.see(before, now)
}

// read decodes a changed object. One that cannot be decoded is logged and ignored; objects that
// depend on it are not deleted, since their sync fails.
func (c *Collector) read(item store.Item) *object {
	o, err := decode(item)
	if err != nil {
		c.cfg.Log.Error("garbage collection leaves alone what it cannot read", "error", err)
	}
	return o
}

// Due implements controller.Logic: it queues expired events.
func (c *Collector) Due(now time.Time) (next time.Time) {
	if c.oldest.IsZero() || c.oldest.After(now) {
		return c.oldest
	}
	c.oldest = time.Time{}
	for key, at := range c.events {
		if at.After(now) {
			c.expect(at)
		} else {
			c.Queue(key)
		}
	}
	return c.oldest
}

// expect schedules the expiry of an event.
func (c *Collector) expect(at time.Time) {
	if c.oldest.IsZero() || at.Before(c.oldest) {
		c.oldest = at
	}
}

// see records a change and queues the objects that it may concern. before is nil for a new object,
// now for a deleted one.
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
		c.Queue(owner) // it may wait for this dependent
	}
	if before != nil && (gone || now.deleting() && !before.deleting()) {
		for dependant := range c.graph.dependants[before.uid()] {
			c.Queue(dependant)
			c.graph.seek(dependant, before.uid()) // it existed where the reference expects it
		}
	}
	switch {
	case now == nil:
		c.Forget(key)
		delete(c.claims, key)
	case now.deleting() || len(now.meta.OwnerReferences) > 0:
		c.Queue(key)
	}
	c.seeKind(key, now)
}

// seeKind handles what is specific to the kind of a changed object.
func (c *Collector) seeKind(key store.Key, now *object) {
	switch key.Resource {
	case "namespaces":
		delete(c.terminating, key.Name)
		if now != nil {
			c.Queue(key)
			if now.deleting() {
				c.terminating[key.Name] = true
			}
		}
	case "events":
		delete(c.events, key)
		if now != nil {
			// At full minutes, so that many expired events are deleted at once.
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
				c.Queue(claim)
			}
		}
	}
	if c.terminating[key.Namespace] || now == nil && (key.Resource == "serviceaccounts" || key.Resource == "configmaps") {
		c.Queue(store.Key{Resource: "namespaces", Name: key.Namespace})
	}
}

// Sync implements controller.Logic.
func (c *Collector) Sync(ctx context.Context, key store.Key) error {
	o, err := c.get(key)
	if err != nil || o == nil {
		return err
	}
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

// get reads an object; nil if it does not exist.
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

type uidSet map[types.UID]bool
