package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// syncWait is how long a reader waits for the first version of an object.
const syncWait = time.Second

// audience is notified of changed objects.
type audience struct {
	changed *pod.Inbox[pod.UID]         // pods to be synced
	noted   func(p pod.UID, why string) // the reason
}

type key struct{ namespace, name string }

// cache is secretManager or configMapManager with the strategy Watch: one watch per object that a
// pod refers to.
//
// The watch of an object:
//
//	none ──registered, or read──► running ──the object is immutable──► none, the object stays cached
//	  ▲                               │
//	  └── used at container start only, and not read for long
type cache[T any] struct {
	resource  string // for errors
	follow    func(ctx context.Context, namespace, name string, seen func(*T))
	immutable func(*T) bool
	idle      time.Duration
	told      audience
	wanted    *pod.Inbox[key] // objects that may need a watch

	mu    sync.Mutex
	items map[key]*item[T]             // guarded by mu
	pods  map[pod.UID]map[key]*item[T] // guarded by mu
}

// item is one object that pods refer to. Its fields are guarded by the cache's mu.
type item[T any] struct {
	pods   map[pod.UID]pod.ReferenceUse
	watch  *watching     // nil: not watched
	synced chan struct{} // closed when read
	read   bool          // object is the server's version
	object *T            // nil: it does not exist
	frozen bool          // object is immutable
	missed bool          // a reader timed out: its pod is notified after the first read
	used   time.Time     // when it was last read or registered
}

// watching is one run of an object's watch; reports of earlier runs are ignored.
type watching struct{ stop context.CancelFunc }

func newCache[T any](resource string, follow func(context.Context, string, string, func(*T)), idle time.Duration,
	to audience, immutable func(*T) bool,
) *cache[T] {
	return &cache[T]{
		resource: resource, follow: follow, immutable: immutable, idle: idle, told: to, wanted: pod.NewInbox[key](),
		items: map[key]*item[T]{}, pods: map[pod.UID]map[key]*item[T]{},
	}
}

// register replaces the pod's references by those in uses, by name.
func (c *cache[T]) register(uid pod.UID, _, namespace string, uses map[string]pod.ReferenceUse) {
	var unwatched []key
	var stopped []*watching
	c.mu.Lock()
	mine := c.pods[uid]
	for name, u := range uses {
		k := key{namespace, name}
		it := c.items[k]
		if it == nil {
			it = &item[T]{pods: map[pod.UID]pod.ReferenceUse{}, synced: make(chan struct{}), used: time.Now()}
			c.items[k] = it
		}
		if it.watch == nil && !it.frozen {
			unwatched = append(unwatched, k)
		}
		it.pods[uid] = u
		if mine == nil {
			mine = map[key]*item[T]{}
			c.pods[uid] = mine
		}
		mine[k] = it
	}
	for k, it := range mine {
		if _, ok := uses[k.name]; ok && k.namespace == namespace {
			continue
		}
		delete(mine, k)
		delete(it.pods, uid)
		if len(it.pods) == 0 {
			delete(c.items, k)
			stopped = append(stopped, it.watch)
		}
	}
	if len(mine) == 0 {
		delete(c.pods, uid)
	}
	c.mu.Unlock()
	for _, w := range stopped {
		w.end()
	}
	for _, k := range unwatched {
		c.wanted.Put(k)
	}
}

func (w *watching) end() {
	if w != nil {
		w.stop()
	}
}

// get returns the newest version of a registered object.
func (c *cache[T]) get(ctx context.Context, namespace, name string) (*T, error) {
	k := key{namespace, name}
	c.mu.Lock()
	it := c.items[k]
	if it == nil {
		c.mu.Unlock()
		return nil, fmt.Errorf("object %q/%q not registered", namespace, name)
	}
	it.used = time.Now()
	synced, unwatched := it.synced, it.watch == nil && !it.frozen
	c.mu.Unlock()
	if unwatched {
		c.wanted.Put(k)
	}
	timer := time.NewTimer(syncWait)
	defer timer.Stop()
	select {
	case <-synced:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
	}
	c.mu.Lock()
	object, read := it.object, it.read
	it.missed = it.missed || !read
	c.mu.Unlock()
	if !read {
		return nil, fmt.Errorf("failed to sync %s cache: timed out waiting for the condition", c.resource)
	}
	if object == nil {
		return nil, apierrors.NewNotFound(v1.Resource(c.resource), name)
	}
	return object, nil
}

// run starts requested watches and stops idle ones, until ctx is done and all watches have
// returned.
func (c *cache[T]) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	timer := time.NewTimer(c.idle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted.Wake():
			for _, k := range c.wanted.Take() {
				c.watch(ctx, &watches, k)
			}
		case <-timer.C:
		}
		if next := c.endIdle(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// watch starts the watch of an object, unless it is running or not needed.
func (c *cache[T]) watch(ctx context.Context, watches *sync.WaitGroup, k key) {
	ctx, stop := context.WithCancel(ctx)
	w := &watching{stop}
	c.mu.Lock()
	it := c.items[k]
	needed := it != nil && it.watch == nil && !it.frozen
	if needed {
		it.watch = w
	}
	c.mu.Unlock()
	if !needed {
		stop()
		return
	}
	watches.Go(func() {
		defer stop()
		c.follow(ctx, k.namespace, k.name, func(object *T) { c.seen(it, w, k.name, object) })
	})
}

// seen stores the version that a watch reports. Pods are notified if it differs from the previous
// version, or if they timed out waiting.
func (c *cache[T]) seen(it *item[T], w *watching, name string, object *T) {
	c.mu.Lock()
	if it.watch != w {
		c.mu.Unlock()
		return
	}
	first, before := !it.read, it.object
	tell := it.missed || (!first || it.object != nil) && version(it.object) != version(object)
	it.object, it.read, it.missed = object, true, false
	if object != nil && c.immutable(object) {
		it.frozen, it.watch = true, nil
	}
	synced, frozen := it.synced, it.frozen
	var pods []pod.UID
	if tell {
		for uid := range it.pods {
			pods = append(pods, uid)
		}
	}
	c.mu.Unlock()
	if first {
		close(synced)
	}
	if frozen {
		w.end()
	}
	for _, uid := range pods {
		c.told.noted(uid, fmt.Sprintf("%s %s %s", c.resource, name, become(before, object)))
		c.told.changed.Put(uid)
	}
}

// become describes the change of an object.
func become[T any](before, now *T) string {
	switch {
	case now == nil && before == nil:
		return "is not there"
	case now == nil:
		return "is gone"
	case before == nil:
		return "is there"
	}
	return "changed"
}

// endIdle stops idle watches of objects that are used only at container start, and returns when the
// next one is idle; zero if there is none.
func (c *cache[T]) endIdle(now time.Time) (next time.Time) {
	var ended []*watching
	c.mu.Lock()
	for _, it := range c.items {
		if it.watch == nil || it.live() {
			continue
		}
		due := it.used.Add(c.idle)
		switch {
		case !due.After(now):
			ended = append(ended, it.watch)
			it.watch = nil
			if it.read { // the object may be stale from now on
				it.read, it.synced = false, make(chan struct{})
			}
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	c.mu.Unlock()
	for _, w := range ended {
		w.end()
	}
	return next
}

func (it *item[T]) live() bool {
	for _, u := range it.pods {
		if u == pod.Mounted {
			return true
		}
	}
	return false
}

// version identifies a version of an object; "" for none.
func version[T any](object *T) string {
	o, ok := any(object).(metav1.Object)
	if object == nil || !ok {
		return ""
	}
	return string(o.GetUID()) + "/" + o.GetResourceVersion()
}
