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

	"berth/internal/pod"
)

// Back-off while the server does not answer: each delay is random between the value and its double,
// so that the nodes of a cluster do not reconnect all at once. A recovered server is detected after
// at most 20 s.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 10 * time.Second
	// resetAfter is how long a watch must have worked before the back-off is reset.
	resetAfter = 2 * time.Minute
)

// Watch maintains a copy of a set of the server's objects. The set is empty before the first list
// is complete. While the server is unavailable, it does not change.
//
// The objects are shared and must not be changed; they have no managedFields. All methods except
// Run may be called at any time.
type Watch[P Watchable] struct {
	client   *Client
	resource resource
	selector Selector
	changed  func()
	expected func() []types.UID // nil: none
	synced   chan struct{}      // closed at the first complete list
	log      *slog.Logger

	// Of the reflector's goroutine:
	ctx    context.Context // Run's
	stale  *wait.Backoff   // after an attempt with an expired or too large resource version; else nil
	opened time.Time       // start of the last stream; zero if the next one follows a list
	life   time.Duration
	first  *opening   // the stream of the initial list, until it is complete; else nil
	size   *allowance // of the last list

	mu      sync.Mutex
	objects map[types.NamespacedName]P // guarded by mu; nil before the first complete list
	err     error                      // guarded by mu
	warned  bool                       // guarded by mu; the failure was logged as a warning
}

// NewWatch returns a watch that starts with Run. changed is called, from one goroutine, after the
// first complete list, even if that is empty, and after every change. It must not block. It may be
// nil.
func NewWatch[P Watchable](c *Client, s Selector, changed func()) *Watch[P] {
	return NewWatchOf[P](c, s, nil, changed)
}

// NewWatchOf is NewWatch with the objects that an earlier agent had. A first list without any of
// them is confirmed, like every later list without any of the previous objects. known is called for
// such a list; nil means none.
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
	// Like the reflector's Run, except that errors do not go to a handler that sleeps on a
	// process-wide clock.
	tries := waits
	err := tries.DelayWithReset(stoppable, resetAfter).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
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

// List returns the set, sorted by namespace and name. Before the first list is complete, the set is
// empty and synced is false.
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

// Get returns one object of the set. namespace is "" for cluster-scoped kinds. Before the first
// list is complete, it returns false.
func (w *Watch[P]) Get(namespace, name string) (P, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, ok := w.objects[types.NamespacedName{Namespace: namespace, Name: name}]
	return o, ok
}

// Err returns the error of the last attempt to list or watch, or nil. It explains why Synced is not
// closed.
func (w *Watch[P]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// note stores the result of an attempt, and logs the first failure and the recovery.
func (w *Watch[P]) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // failed because it was stopped
	}
	level := LogLevel(err, slog.LevelWarn)
	w.mu.Lock()
	warned := w.warned
	w.err, w.warned = err, err != nil && (warned || level == slog.LevelWarn)
	w.mu.Unlock()
	switch {
	case err != nil && !warned:
		w.log.Log(ctx, level, "cannot watch, trying again", "error", err)
	case err != nil:
		w.log.DebugContext(ctx, "still cannot watch", "error", err)
	case warned:
		w.log.InfoContext(ctx, "watching again")
	}
}

// list lists for the reflector. Success does not end a failure: the watch that follows may fail.
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
		w.size = w.wholeSet() // for all pages together
	}
	ctx, cancel := context.WithTimeout(allow(ctx, w.size), w.client.timeout)
	defer cancel()
	if err := answerTo(w.request(o).Do(asCall(ctx, "list")), list); err != nil {
		return nil, fmt.Errorf("list %s: %w", w.resource.plural, err)
	}
	return list, nil
}

func (w *Watch[P]) request(o metav1.ListOptions) *rest.Request {
	return w.client.rest[w.resource].Get().
		NamespaceIfScoped(w.selector.Namespace, w.resource.namespaced && w.selector.Namespace != "").
		Resource(w.resource.plural).VersionedParams(&o, parameterCodec())
}

// wholeSet returns the allowance of a complete list.
func (w *Watch[P]) wholeSet() *allowance {
	return newAllowance(maxListBytes, "the list of "+w.resource.plural)
}

// watch watches for the reflector, usually with the initial list as events.
func (w *Watch[P]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o = w.selector.apply(o)
	o.Watch = true
	if o.SendInitialEvents == nil && w.cutOff() {
		return nil, apierrors.NewResourceExpired("the last watch was cut off")
	}
	size := w.wholeSet()
	if o.SendInitialEvents == nil {
		size.lift() // each event is limited separately
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
		w.first = &opening{stream, size} // success is noted when the set is complete
	case !apierrors.IsInvalid(err): // without streaming lists, the reflector lists next
		w.note(ctx, err)
	}
	return stream, err
}

// opening is a stream that begins with the whole set.
type opening struct {
	stream watch.Interface
	size   *allowance
}

// cutOff reports, once, whether the last stream ended early. Then the server may have restarted
// with older data, and a watch from the last resource version would wait for a long time. The
// reflector lists again, which is cheap for the server if its data are not older.
func (w *Watch[P]) cutOff() bool {
	early := !w.opened.IsZero() && time.Since(w.opened) < w.life
	w.opened = time.Time{}
	return early
}

// errUnanswered means that the server accepted a watch request and sent no answer.
var errUnanswered = errors.New("the server does not answer")

// open opens a watch. A server sends the response header at once, even without events; otherwise
// the watch is canceled.
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
		return nil, unwrapTooLarge(err)
	}
	return opened{stream, func() { cancel(nil) }}, nil
}

// opened is a watch with its own context.
type opened struct {
	watch.Interface
	cancel func()
}

// Stop stops the watch.
func (o opened) Stop() {
	o.Interface.Stop()
	o.cancel()
}

// pace delays the next attempt if consecutive ones fail because of the resource version: the
// reflector retries without a delay, which is right only once.
func (w *Watch[P]) pace(ctx context.Context, err error) {
	switch {
	case !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		w.stale = nil
	case w.stale == nil:
		w.stale = &wait.Backoff{Duration: firstRetry, Factor: 2, Cap: lastRetry, Steps: math.MaxInt}
	default:
		pod.Pause(ctx, w.stale.Step())
	}
}

// stoppableClock is the real clock, except that waits end when the context is done. The reflector
// ignores its context in some waits.
type stoppableClock struct {
	clock.RealClock
	done context.Context
}

// After returns a channel that receives the time after d, or when the context is done.
func (c stoppableClock) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	var once sync.Once
	fire := func() { once.Do(func() { ch <- time.Now() }) }
	stop := context.AfterFunc(c.done, fire)
	time.AfterFunc(d, func() { stop(); fire() })
	return ch
}
