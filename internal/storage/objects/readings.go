package objects

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"berth/internal/pod"
)

// defaultTTL is the TTL of cached objects if the Node has none (KubeletConfiguration,
// configMapAndSecretChangeDetectionStrategy).
const defaultTTL = time.Minute

// readings is secretManager or configMapManager with the strategies Cache and Get: an object is
// read from the server on demand, and cached for its TTL. Changes are not reported, so pods with
// objects in volumes are synced periodically.
type readings[T any] struct {
	resource string // for errors
	read     func(ctx context.Context, namespace, name string, options metav1.GetOptions) (*T, error)
	ttl      func() time.Duration // 0: nothing is cached
	period   time.Duration        // between two syncs of a pod, plus up to half of it
	changed  *pod.Inbox[pod.UID]
	came     *pod.Inbox[struct{}] // another pod is to be synced periodically

	mu     sync.Mutex
	copies map[key]*reading[T] // guarded by mu; the references of registered pods
	pods   map[pod.UID]*reader // guarded by mu
}

// reading is one cached object. Its fields are guarded by the mu of the readings.
type reading[T any] struct {
	pods   map[pod.UID]bool
	object *T // nil: it did not exist, or was never read
	known  bool
	at     time.Time // time of the read
	wanted int       // number of changes of pods that refer to it
	met    int       // value of wanted at the start of the read
}

// current reports whether no pod requires a newer read. The caller holds mu.
func (c *reading[T]) current() bool { return c.known && c.met == c.wanted }

// reader is a pod that refers to objects. Its fields are guarded by the mu of the readings.
type reader struct {
	version  string
	keys     map[key]bool
	rereadAt time.Time // time of the next sync; zero: never
}

func newReadings[T any](resource string, read func(context.Context, string, string, metav1.GetOptions) (*T, error), ttl func() time.Duration,
	period time.Duration, changed *pod.Inbox[pod.UID],
) *readings[T] {
	return &readings[T]{
		resource: resource, read: read, ttl: ttl, period: period, changed: changed, came: pod.NewInbox[struct{}](),
		copies: map[key]*reading[T]{}, pods: map[pod.UID]*reader{},
	}
}

// register replaces the pod's references by those in uses, by name. For a new reference or a new
// version of the pod, cached objects are stale: its author may have changed them just before.
func (r *readings[T]) register(uid pod.UID, version, namespace string, uses map[string]pod.ReferenceUse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := r.pods[uid]
	if mine == nil {
		mine = &reader{keys: map[key]bool{}}
	}
	isNew := r.pods[uid] == nil || mine.version != version
	follows := false
	for name, u := range uses {
		k := key{namespace, name}
		c := r.copies[k]
		if c == nil {
			c = &reading[T]{pods: map[pod.UID]bool{}}
			r.copies[k] = c
		}
		if isNew || !mine.keys[k] {
			c.wanted++
		}
		c.pods[uid], mine.keys[k] = true, true
		follows = follows || u == pod.Mounted
	}
	for k := range mine.keys {
		if _, ok := uses[k.name]; ok && k.namespace == namespace {
			continue
		}
		delete(mine.keys, k)
		delete(r.copies[k].pods, uid)
		if len(r.copies[k].pods) == 0 {
			delete(r.copies, k)
		}
	}
	mine.version = version
	switch {
	case !follows:
		mine.rereadAt = time.Time{}
	case mine.rereadAt.IsZero():
		mine.rereadAt = r.nextLook(time.Now())
		r.came.Put(struct{}{})
	}
	if len(mine.keys) == 0 {
		delete(r.pods, uid)
	} else {
		r.pods[uid] = mine
	}
}

// nextLook spreads the syncs of pods that were added together.
func (r *readings[T]) nextLook(now time.Time) time.Time {
	return now.Add(r.period + rand.N(r.period/2+1))
}

// get returns a registered object: from the cache within the TTL, else from the server. If the
// server does not answer, it returns an object whose TTL has passed.
func (r *readings[T]) get(ctx context.Context, namespace, name string) (*T, error) {
	k := key{namespace, name}
	ttl := r.ttl()
	r.mu.Lock()
	c := r.copies[k]
	if c == nil {
		r.mu.Unlock()
		return nil, fmt.Errorf("object %q/%q not registered", namespace, name)
	}
	last, at, current, wanted := c.object, c.at, c.current(), c.wanted
	r.mu.Unlock()
	if current && time.Since(at) < ttl {
		return r.answer(last, name)
	}
	var options metav1.GetOptions
	if current && last != nil && ttl > 0 {
		options.ResourceVersion = "0" // allows the server to answer from its cache
	}
	object, err := r.read(ctx, namespace, name, options)
	switch {
	case apierrors.IsNotFound(err):
		object = nil
	case err != nil && ttl > 0 && current && ctx.Err() == nil:
		return r.answer(last, name)
	case err != nil:
		return nil, err
	}
	return r.answer(r.update(c, object, wanted), name)
}

// update caches the read object, unless the cached one is newer, and returns the newer one.
func (r *readings[T]) update(c *reading[T], object *T, wanted int) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.known && isOlder(object, c.object) {
		object = c.object
	}
	c.object, c.known, c.at = object, true, time.Now()
	c.met = max(c.met, wanted) // a pod that was added since requires another read
	return object
}

// isOlder reports whether a is an earlier version of the same object as b.
func isOlder[T any](a, b *T) bool {
	if a == nil || b == nil {
		return false
	}
	m, n := any(a).(metav1.Object), any(b).(metav1.Object)
	order, err := resourceversion.CompareResourceVersion(m.GetResourceVersion(), n.GetResourceVersion())
	return err == nil && m.GetUID() == n.GetUID() && order < 0
}

func (r *readings[T]) answer(object *T, name string) (*T, error) {
	if object == nil {
		return nil, apierrors.NewNotFound(v1.Resource(r.resource), name)
	}
	return object, nil
}

// run triggers periodic syncs of pods with objects in volumes, until ctx is done.
func (r *readings[T]) run(ctx context.Context) {
	timer := time.NewTimer(r.period)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.came.Wake():
			r.came.Take()
		case <-timer.C:
		}
		if next := r.notifyDue(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// notifyDue notifies the pods that are due, and returns the time of the next one; zero for never.
func (r *readings[T]) notifyDue(now time.Time) (next time.Time) {
	var due []pod.UID
	r.mu.Lock()
	for uid, p := range r.pods {
		if p.rereadAt.IsZero() {
			continue
		}
		if !p.rereadAt.After(now) {
			due = append(due, uid)
			p.rereadAt = r.nextLook(now)
		}
		if next.IsZero() || p.rereadAt.Before(next) {
			next = p.rereadAt
		}
	}
	r.mu.Unlock()
	for _, uid := range due {
		r.changed.Put(uid)
	}
	return next
}
