package controller_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/controller"
	"berth/internal/localapi/store"
)

// logic queues whatever changes, and has each look fail that it is told to.
type logic struct {
	*controller.Controller
	start  time.Time
	onSync func()

	mu    sync.Mutex
	begun int              // guarded by mu
	looks []string         // guarded by mu; time since the start, and the object
	errs  map[string]error // guarded by mu
	first []string         // guarded by mu; what was seen as there at the beginning
	dueAt time.Time        // guarded by mu
}

func (l *logic) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
}

func (l *logic) See(change store.Change, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.IsZero() {
		l.first = append(l.first, change.Now.Key.Name)
	}
	if change.Now.Value == nil {
		l.Forget(change.Now.Key)
		return
	}
	l.Queue(change.Now.Key)
}

func (l *logic) Sync(_ context.Context, key store.Key) error {
	if l.onSync != nil {
		l.onSync()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks = append(l.looks, time.Since(l.start).String()+" "+key.Name)
	return l.errs[key.Name]
}

func (l *logic) Due(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dueAt.IsZero() && !l.dueAt.After(now) {
		l.dueAt = time.Time{}
		l.Queue(key("pods", "due"))
	}
	return l.dueAt
}

func key(resource, name string) store.Key {
	return store.Key{Resource: resource, Namespace: "default", Name: name}
}

// run has a controller over a new store with these objects run until the test's end.
func run(t *testing.T, l *logic, cfg store.Config, objects ...store.Key) (write func(store.Key, string)) {
	t.Helper()
	cfg.Path, cfg.NoSync = filepath.Join(t.TempDir(), "objects.db"), true
	s, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	write = func(k store.Key, value string) {
		t.Helper()
		seen := uint64(0)
		if item, err := s.Get(k); err == nil {
			seen = item.Revision
		}
		var b []byte
		if value != "" {
			b = []byte(value)
		}
		if _, err := s.Write(k, seen, b); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range objects {
		write(k, "first")
	}
	l.start = time.Now()
	l.Controller = controller.New(controller.Config{Name: "test", Store: s, Resources: []string{"pods", "nodes"}, Log: slog.New(slog.DiscardHandler)}, l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return write
}

func (l *logic) expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, l.take()); diff != "" {
		t.Errorf("looks (-want +got):\n%s", diff)
	}
}

// take returns the looks since the last time.
func (l *logic) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	looks := l.looks
	l.looks = nil
	return looks
}

// works has looks at an object not fail any more.
func (l *logic) works(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.errs, name)
}

// What is there is looked at in the order of the resources, then what changes or is due.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &logic{dueAt: time.Now().Add(5 * time.Second)}
		write := run(t, l, store.Config{}, key("nodes", "n"), key("pods", "b"), key("pods", "a"), key("leases", "unseen"))
		l.expect(t, "0s a", "0s b", "0s n")
		l.mu.Lock()
		first := l.first
		l.mu.Unlock()
		if diff := cmp.Diff([]string{"a", "b", "n"}, first); diff != "" {
			t.Errorf("seen at the beginning (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Second)
		write(key("leases", "later"), "x")
		l.expect(t, "2s later")
		time.Sleep(time.Hour)
		l.expect(t, "5s due")
	})
}

// Wake has Due asked at once, and what that queues is looked at.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &logic{}
		run(t, l, store.Config{})
		l.expect(t)
		for range 2 {
			l.mu.Lock()
			l.dueAt = time.Now()
			l.mu.Unlock()
			time.Sleep(time.Minute)
			l.expect(t)
			l.Wake()
			l.expect(t, time.Since(l.start).String()+" due")
		}
	})
}

// A look that fails is tried again, later each time, until it works or the object is gone. A
// conflict is, too, and is no failure.
func TestLooksThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &logic{errs: map[string]error{
			"bad": errors.New("no"), "conflict": apierrors.NewConflict(schema.GroupResource{}, "conflict", errors.New("changed")),
			"gone": apierrors.NewNotFound(schema.GroupResource{}, "gone"),
		}}
		write := run(t, l, store.Config{}, key("pods", "conflict"), key("pods", "gone"))
		l.expect(t, "0s conflict", "0s gone")
		if err := l.Health(); err != nil {
			t.Errorf("health after a conflict: %v", err)
		}
		time.Sleep(time.Second)
		l.expect(t, "1s conflict")
		l.works("conflict")
		write(key("pods", "bad"), "x")
		l.expect(t, "1s bad")
		if err := l.Health(); err == nil || err.Error() != "test: pods/default/bad: no" {
			t.Errorf("health: %v", err)
		}
		time.Sleep(10 * time.Second)
		l.expect(t, "2s bad", "3s conflict", "4s bad", "8s bad")
		time.Sleep(2 * time.Minute)
		if looks := l.take(); len(looks) != 4 { // at 16 s, 32 s, 64 s, 124 s: never more than a minute apart
			t.Errorf("%d looks: %v", len(looks), looks)
		}
		write(key("pods", "bad"), "") // it is gone
		time.Sleep(time.Hour)
		l.expect(t)
		if err := l.Health(); err != nil {
			t.Errorf("health at the end: %v", err)
		}
	})
}

// Who has looked for longer than the history reaches begins again.
func TestHistoryIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		l := &logic{onSync: func() { <-busy }}
		write := run(t, l, store.Config{MaxHistory: 2})
		write(key("pods", "0"), "x")
		synctest.Wait()
		for _, name := range []string{"1", "2", "3", "4"} {
			write(key("pods", name), "x")
		}
		close(busy)
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.begun != 2 || !slices.Equal(l.first, []string{"0", "1", "2", "3", "4"}) {
			t.Errorf("begun %d times, at last with %v", l.begun, l.first)
		}
	})
}
