package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/scheduler"
	"berth/internal/localapi/store"
	"berth/internal/record/journal"
)

const node = "n1"

// world is a store, and the writer of a scheduler over it.
type world struct {
	*testing.T
	store   *store.Store
	journal *journal.Journal

	mu    sync.Mutex
	uids  int                     // guarded by mu
	calls []string                // guarded by mu; writes of the scheduler
	fail  func(call string) error // guarded by mu; called before a write of the scheduler
	began time.Time               // guarded by mu; of the shutdown of the machine
}

func newWorld(t *testing.T, objects ...kinds.Object) *world {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "objects.db"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{T: t, store: s, journal: journal.New(slog.New(slog.DiscardHandler))}
	for _, o := range objects {
		w.put(o)
	}
	return w
}

// start runs a scheduler until stop or the end of the test, and waits until it is idle.
func (w *world) start() (s *scheduler.Scheduler, stop func()) {
	s = scheduler.New(scheduler.Config{
		Store: w.store, Writer: w, Decider: scheduler.Filters{}, NodeName: node, Journal: w.journal, Shutdown: w, Log: slog.New(slog.NewTextHandler(w.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	w.Cleanup(stop)
	synctest.Wait()
	return s, stop
}

func keyOf(o kinds.Object) store.Key {
	return store.Key{Resource: kinds.Of(o).Stored, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// called records a write, and returns the error that the test wants of it.
func (w *world) called(o kinds.Object) error {
	var call string
	switch o := o.(type) {
	case *v1.Event:
		call = "event " + o.InvolvedObject.Name + ": " + o.Type + " " + o.Reason + " " + o.Message
	case *v1.Pod:
		if call = "hold " + o.Name; o.Spec.NodeName != "" {
			call = "bind " + o.Name
		}
	default:
		call = "write " + keyOf(o).String()
	}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		return fail(call)
	}
	return nil
}

// expect compares the writes of the scheduler since the last time.
func (w *world) expect(want ...string) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.calls); diff != "" {
		w.Errorf("writes (-want +got):\n%s", diff)
	}
	w.calls = nil
}

// Began is scheduler.Shutdown.
func (w *world) Began() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.began
}

// shutDown begins a shutdown of the machine, or cancels it: zero.
func (w *world) shutDown(s *scheduler.Scheduler, began time.Time) {
	w.mu.Lock()
	w.began = began
	w.mu.Unlock()
	s.Wake()
}

func (w *world) failing(fail func(call string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

func (w *world) Create(_ context.Context, o kinds.Object) error {
	if err := w.called(o); err != nil {
		return err
	}
	return w.write(o.DeepCopyObject().(kinds.Object), 0)
}

func (w *world) Update(_ context.Context, o kinds.Object) error {
	if err := w.called(o); err != nil {
		return err
	}
	seen, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return fmt.Errorf("an update without a version: %w", err)
	}
	return w.write(o.DeepCopyObject().(kinds.Object), seen)
}

func (w *world) write(o kinds.Object, seen uint64) error {
	w.mu.Lock()
	if o.GetUID() == "" {
		w.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
	}
	w.mu.Unlock()
	if o.GetCreationTimestamp().Time.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(time.Now()))
	}
	value, err := kinds.Encode(o)
	if err != nil {
		return err
	}
	_, err = w.store.Write(keyOf(o), seen, value)
	resource := kinds.Of(o).Resource()
	switch {
	case errors.Is(err, store.ErrConflict):
		return apierrors.NewConflict(resource, o.GetName(), err)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(resource, o.GetName())
	}
	return err
}

// put creates an object as a client does.
func (w *world) put(o kinds.Object) {
	w.Helper()
	time.Sleep(time.Second) // ages differ
	if err := w.write(o.DeepCopyObject().(kinds.Object), 0); err != nil {
		w.Fatal(err)
	}
}

func find[T kinds.Object](w *world, resource, namespace, name string) (T, uint64) {
	w.Helper()
	item, err := w.store.Get(store.Key{Resource: resource, Namespace: namespace, Name: name})
	if err != nil {
		w.Fatal(err)
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		w.Fatal(err)
	}
	return o.(T), item.Revision
}

func (w *world) pod(name string) *v1.Pod {
	w.Helper()
	p, _ := find[*v1.Pod](w, "pods", "default", name)
	return p
}

// editPod and editNode change an object as a client or the agent does.
func (w *world) editPod(name string, how func(*v1.Pod)) {
	w.Helper()
	p, revision := find[*v1.Pod](w, "pods", "default", name)
	how(p)
	if err := w.write(p, revision); err != nil {
		w.Fatal(err)
	}
}

func (w *world) editNode(how func(*v1.Node)) {
	w.Helper()
	n, revision := find[*v1.Node](w, "nodes", "", node)
	how(n)
	if err := w.write(n, revision); err != nil {
		w.Fatal(err)
	}
}

// remove deletes an object.
func (w *world) remove(key store.Key) {
	w.Helper()
	item, err := w.store.Get(key)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.store.Write(key, item.Revision, nil); err != nil {
		w.Fatal(err)
	}
}

func podKey(name string) store.Key {
	return store.Key{Resource: "pods", Namespace: "default", Name: name}
}

// events returns the keys of the events about a pod.
func (w *world) events(pod string) (keys []store.Key) {
	w.Helper()
	_, err := w.store.List(store.Range{Resource: "events"}, func(i store.Item) bool {
		o, err := kinds.Decode(i.Value, i.Revision)
		if err != nil {
			w.Error(err)
			return false
		}
		if o.(*v1.Event).InvolvedObject.Name == pod {
			keys = append(keys, i.Key)
		}
		return true
	})
	if err != nil {
		w.Fatal(err)
	}
	return keys
}

// condition returns the condition PodScheduled of a pod as text.
func (w *world) condition(name string) string {
	w.Helper()
	for _, c := range w.pod(name).Status.Conditions {
		if c.Type == v1.PodScheduled {
			return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
		}
	}
	return "none"
}
