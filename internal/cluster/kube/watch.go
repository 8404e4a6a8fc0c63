package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// Waits between tries while the server does not answer: each is drawn between the wait and its
// double, so that the nodes of a cluster do not come back all at once. A server that is back is
// noticed after 20 s at the latest.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 10 * time.Second
	// calmAfter is how long a watch must have worked before the waits begin anew.
	calmAfter = 2 * time.Minute
)

// Watch keeps a set of objects equal to what the server has. Nothing of it can be seen before the
// first list is complete. While the server cannot be reached the set stays as it was.
//
// The objects are shared and must not be changed; they come without managedFields. Everything but
// Run may be called at any time.
type Watch[P Watchable] struct {
	client   *Client
	resource resource
	selector Selector
	changed  func()
	expected func() []types.UID // nil: nothing
	synced   chan struct{}      // closed at the first complete list
	log      *slog.Logger

	// Of the reflector's goroutine:
	ctx    context.Context // Run's
	stale  int             // tries in a row that asked for what is too old, or too new
	opened time.Time       // when the last stream began; zero if the next one follows a list
	life   time.Duration
	first  *opening   // the stream that is to bring the whole set, until it has; else nil
	size   *allowance // of the last list

	mu      sync.Mutex
	objects map[types.NamespacedName]P // guarded by mu; nil before the first complete list
	err     error                      // guarded by mu
	told    bool                       // guarded by mu; the trouble was logged as a warning
}

// NewWatch returns a watch that begins with Run. changed is called, from one goroutine, after the
// first complete list, even if it is empty, and after every change; it must not block: it is where
// an inbox is put into. It may be nil.
func NewWatch[P Watchable](c *Client, s Selector, changed func()) *Watch[P] {
	return NewWatchOf[P](c, s, nil, changed)
}

// NewWatchOf is NewWatch for a set of which it is known what an earlier agent had of it. A first
// list without any of that is confirmed, like every later one without anything of what there was.
// known is called when there is such a list; nil knows nothing.
func NewWatchOf[P Watchable](c *Client, s Selector, known func() []types.UID, changed func()) *Watch[P] {
	if changed == nil {
		changed = func() {}
	}
	r := resourceOf[P]()
	log := c.log.With("resource", r.plural)
	if selector := s.String(); selector != "" {
		log = log.With("selector", selector)
	}
	return &Watch[P]{client: c, resource: r, selector: s, expected: known, changed: changed, synced: make(chan struct{}), log: log}
}

// Run watches until ctx is done, and then returns nil. It must be called once.
func (w *Watch[P]) Run(ctx context.Context) error {
	ctx = logr.NewContextWithSlogLogger(ctx, w.log)
	w.ctx = ctx
	log := logr.FromSlogHandler(w.log.Handler())
	stoppable := stoppableClock{RealClock: clock.RealClock{}, done: ctx}
	waits := wait.Backoff{
		Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: 1,
		Steps: int(math.Ceil(float64(lastRetry) / float64(firstRetry))),
	}
	r := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch},
		newObject[P](), (*reflected[P])(w),
		cache.ReflectorOptions{Logger: &log, Name: w.resource.plural, Clock: stoppable, Backoff: &waits})
	// This is what the reflector's own Run does, but that hands errors to a handler which sleeps on
	// a clock of the whole process.
	tries := waits
	err := tries.DelayWithReset(stoppable, calmAfter).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := r.ListAndWatchWithContext(ctx); err != nil {
			w.log.DebugContext(ctx, "list or watch ended", "error", err)
		}
		return false, nil
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch %s: %w", w.resource.plural, err)
	}
	return nil
}

// Synced returns a channel that is closed when the first list is complete.
func (w *Watch[P]) Synced() <-chan struct{} { return w.synced }

// List returns the set, ordered by namespace and name. synced is false, and the set empty, before
// the first list is complete.
func (w *Watch[P]) List() (objects []P, synced bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects == nil {
		return nil, false
	}
	objects = make([]P, 0, len(w.objects))
	for _, o := range w.objects {
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b P) int {
		if c := strings.Compare(a.GetNamespace(), b.GetNamespace()); c != 0 {
			return c
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	return objects, true
}

// Get returns one object of the set. namespace is "" for kinds that have none. Before the first
// list is complete there is none.
func (w *Watch[P]) Get(namespace, name string) (P, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, ok := w.objects[types.NamespacedName{Namespace: namespace, Name: name}]
	return o, ok
}

// Err returns why the last try to list or watch failed, or nil if it worked: what to tell who waits
// for Synced.
func (w *Watch[P]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// note keeps the outcome of a try, and says once that it does not work and once that it does again.
func (w *Watch[P]) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // failed because it was stopped
	}
	level := LogLevel(err, slog.LevelWarn)
	w.mu.Lock()
	told := w.told
	w.err, w.told = err, err != nil && (told || level == slog.LevelWarn)
	w.mu.Unlock()
	switch {
	case err != nil && !told:
		w.log.Log(ctx, level, "cannot watch, trying again", "error", err)
	case err != nil:
		w.log.DebugContext(ctx, "still cannot watch", "error", err)
	case told:
		w.log.InfoContext(ctx, "watching again")
	}
}

// list is one try of the reflector to list. That it works is not yet the end of trouble: what comes
// next, the watch, may fail.
func (w *Watch[P]) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	w.opened, w.first = time.Time{}, nil
	objects, err := w.listObjects(ctx, w.selector.apply(o))
	if err != nil {
		w.note(ctx, err)
	}
	return objects, err
}

func (w *Watch[P]) listObjects(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	kinds, _, err := Scheme().ObjectKinds(newObject[P]())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", w.resource.plural, err)
	}
	list, err := Scheme().New(w.resource.version.WithKind(kinds[0].Kind + "List"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", w.resource.plural, err)
	}
	if o.Continue == "" {
		w.size = w.wholeSet() // of all pages together
	}
	ctx, cancel := context.WithTimeout(allow(ctx, w.size), w.client.timeout)
	defer cancel()
	if err := answerTo(w.request(o).Do(asCall(ctx, "list")), list); err != nil {
		return nil, fmt.Errorf("list %s: %w", w.resource.plural, err)
	}
	return list, nil
}

// request asks for the objects.
func (w *Watch[P]) request(o metav1.ListOptions) *rest.Request {
	return w.client.rest[w.resource].Get().
		NamespaceIfScoped(w.selector.Namespace, w.resource.namespaced && w.selector.Namespace != "").
		Resource(w.resource.plural).VersionedParams(&o, parameterCodec())
}

// wholeSet is how much of a list of all objects is read.
func (w *Watch[P]) wholeSet() *allowance {
	return newAllowance(mostOfList, "the list of "+w.resource.plural)
}

// watch is one try of the reflector to watch, and in most cases to list by watching.
func (w *Watch[P]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o = w.selector.apply(o)
	o.Watch = true
	if o.SendInitialEvents == nil && w.cutOff() {
		return nil, apierrors.NewResourceExpired("the last watch was cut off")
	}
	size := w.wholeSet()
	if o.SendInitialEvents == nil {
		size.lift() // what comes is bounded one by one
	}
	stream, err := w.open(allow(ctx, size), o)
	w.opened, w.life = time.Now(), time.Duration(ptr.Deref(o.TimeoutSeconds, 0))*time.Second
	if err != nil {
		err = fmt.Errorf("watch %s: %w", w.resource.plural, err)
	}
	w.pace(ctx, err)
	switch {
	case o.SendInitialEvents == nil:
		w.note(ctx, err)
	case err == nil:
		w.first = &opening{stream, size} // it works when the set is complete
	case !apierrors.IsInvalid(err): // a server that cannot do that is asked for a list next
		w.note(ctx, err)
	}
	return stream, err
}

// opening is a stream that begins with the whole set.
type opening struct {
	stream watch.Interface
	size   *allowance
}

// cutOff reports, once, whether the last stream ended before its time. Then the server may have
// been restarted with older data, under whose versions a watch that goes on where it was would wait
// for a long time: the reflector lists again, which costs the server little if nothing of the kind
// happened.
func (w *Watch[P]) cutOff() bool {
	early := !w.opened.IsZero() && time.Since(w.opened) < w.life
	w.opened = time.Time{}
	return early
}

// errUnanswered says that a server took a request for a watch and said nothing to it.
var errUnanswered = errors.New("the server does not answer")

// open begins to watch. A server begins its answer at once, however long it has nothing to tell:
// one that does not is given up.
func (w *Watch[P]) open(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	answered := time.AfterFunc(w.client.timeout, func() { cancel(errUnanswered) })
	stream, err := w.request(o).Watch(ctx)
	answered.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), errUnanswered) {
			err = errUnanswered
		}
		cancel(nil)
		return nil, plainly(err)
	}
	return opened{stream, func() { cancel(nil) }}, nil
}

// opened is a watch that has a context of its own.
type opened struct {
	watch.Interface
	cancel func()
}

// Stop ends the watch.
func (o opened) Stop() {
	o.Interface.Stop()
	o.cancel()
}

// pace waits before the next try if one after the other asks for a version that the server does not
// have: the reflector begins anew without a pause then, which is right only once.
func (w *Watch[P]) pace(ctx context.Context, err error) {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		w.stale = 0
		return
	}
	if w.stale++; w.stale == 1 {
		return
	}
	t := time.NewTimer(min(firstRetry<<min(w.stale-2, 10), lastRetry))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// stoppableClock is the real one, but for waits: they end when the context does. The reflector
// waits for some of them without looking whether it is to stop.
type stoppableClock struct {
	clock.RealClock
	done context.Context
}

// After returns a channel that has the time after d, or when the clock is stopped.
func (c stoppableClock) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	var once sync.Once
	fire := func() { once.Do(func() { ch <- time.Now() }) }
	stop := context.AfterFunc(c.done, fire)
	time.AfterFunc(d, func() { stop(); fire() })
	return ch
}
