package manifests_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/store"
)

// world is a store of objects, and its Writer for an Applier.
type world struct {
	*testing.T
	store *store.Store
	reads atomic.Int64 // of the Applier

	mu    sync.Mutex
	uids  int                     // guarded by mu
	calls []string                // guarded by mu
	fail  func(call string) error // guarded by mu; called before a write
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "objects.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{T: t, store: s}
}

// counted is a store that counts reads of objects.
type counted struct {
	*store.Store

	reads *atomic.Int64
}

func (c counted) Get(key store.Key) (store.Item, error) {
	c.reads.Add(1)
	return c.Store.Get(key)
}

// applier returns an Applier that runs until the test ends.
func (w *world) applier() *manifests.Applier {
	a := manifests.New(manifests.Config{Store: counted{w.store, &w.reads}, Writer: w, Log: discard})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return a
}

func keyOf(o kinds.Object) store.Key {
	return store.Key{Resource: kinds.Of(o).Stored, Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (w *world) called(verb string, o kinds.Object) error {
	call := verb + " " + keyOf(o).String()
	w.mu.Lock()
	w.calls = append(w.calls, call)
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		return fail(call)
	}
	return nil
}

// take returns the calls since the last take.
func (w *world) take() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.calls
	w.calls = nil
	return calls
}

func (w *world) failing(fail func(call string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

func (w *world) Create(_ context.Context, o kinds.Object) error {
	if err := w.called("create", o); err != nil {
		return err
	}
	return w.write(o.DeepCopyObject().(kinds.Object), 0)
}

func (w *world) Update(_ context.Context, o kinds.Object) error {
	if err := w.called("update", o); err != nil {
		return err
	}
	return w.write(o.DeepCopyObject().(kinds.Object), version(w, o))
}

func (w *world) Delete(_ context.Context, o kinds.Object) error {
	if err := w.called("delete", o); err != nil {
		return err
	}
	return w.remove(o)
}

// remove deletes an object, or marks it as deleted if it has finalizers.
func (w *world) remove(o kinds.Object) error {
	seen := version(w, o)
	if o = o.DeepCopyObject().(kinds.Object); len(o.GetFinalizers()) > 0 {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		return w.write(o, seen)
	}
	_, err := w.store.Write(keyOf(o), seen, nil)
	return errorOf(o, seen, err)
}

// errorOf is what the API makes of an error of the store.
func errorOf(o kinds.Object, seen uint64, err error) error {
	switch {
	case errors.Is(err, store.ErrConflict) && seen == 0:
		return apierrors.NewAlreadyExists(kinds.Of(o).Resource(), o.GetName())
	case errors.Is(err, store.ErrConflict):
		return apierrors.NewConflict(kinds.Of(o).Resource(), o.GetName(), err)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(kinds.Of(o).Resource(), o.GetName())
	}
	return err
}

func version(w *world, o kinds.Object) uint64 {
	w.Helper()
	seen, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		w.Errorf("a write of %s without a version: %v", keyOf(o), err)
	}
	return seen
}

func (w *world) write(o kinds.Object, seen uint64) error {
	if o.GetUID() == "" {
		w.mu.Lock()
		w.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
		w.mu.Unlock()
		o.SetCreationTimestamp(metav1.Now())
	}
	value, err := kinds.Encode(o)
	if err != nil {
		return err
	}
	_, err = w.store.Write(keyOf(o), seen, value)
	return errorOf(o, seen, err)
}

// put makes an object as a client does.
func (w *world) put(o kinds.Object) {
	w.Helper()
	if err := w.write(o.DeepCopyObject().(kinds.Object), 0); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// find reads the object that has the kind and the name of another; nil if it is not there.
func find[T kinds.Object](w *world, like T) T {
	w.Helper()
	var none T
	item, err := w.store.Get(keyOf(like))
	if errors.Is(err, store.ErrNotFound) {
		return none
	}
	if err != nil {
		w.Fatal(err)
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		w.Fatal(err)
	}
	return o.(T)
}

// edit changes an object as a client does.
func edit[T kinds.Object](w *world, like T, how func(T)) {
	w.Helper()
	o := find(w, like)
	how(o)
	if err := w.write(o, version(w, o)); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// drop deletes an object as a client does.
func drop[T kinds.Object](w *world, like T) {
	w.Helper()
	if err := w.remove(find(w, like)); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// there are the keys of all objects that a test looks at.
func (w *world) there() map[string]bool {
	w.Helper()
	all := map[string]bool{}
	for _, k := range kinds.All {
		if _, err := w.store.List(store.Range{Resource: k.Stored}, func(i store.Item) bool {
			all[i.Key.String()] = true
			return true
		}); err != nil {
			w.Fatal(err)
		}
	}
	return all
}
