package syncloop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/sync/podworkers"
	"berth/internal/sync/syncloop"
)

// world is a PodSource and PodWorkers that keep a diary.
type world struct {
	mu       sync.Mutex
	wake     chan struct{}
	updates  []pod.PodUpdate
	seen     bool
	has      map[pod.UID]bool
	orphans  map[pod.UID]bool
	finished *pod.Inbox[pod.UID]
	changed  *pod.Inbox[pod.UID]
	resized  *pod.Inbox[pod.UID]
	devices  *pod.Inbox[pod.UID]
	loop     *syncloop.SyncLoop
	hang     chan struct{} // when it is not nil, Take waits until it is closed
	woken    []pod.UID
	restored chan struct{}
	static   *pod.Inbox[pod.FullName]
	relisted chan struct{}
	left     []*pod.Status
	diary    []string
	updated  func(pod.UID) // is called by UpdatePod; nil for nothing
	pods     *pod.Manager
	t        *testing.T
}

func (w *world) Wake() <-chan struct{} { return w.wake }

func (w *world) Take() []pod.PodUpdate {
	if w.hang != nil {
		<-w.hang
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.updates
	w.updates, w.seen = nil, true
	return u
}

func (w *world) SeenAllSources() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

func (w *world) UpdatePod(o podworkers.UpdatePodOptions) {
	if w.updated != nil {
		w.updated(o.Pod.UID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.Wanted == podworkers.Unwanted {
		w.orphans[o.Pod.UID] = true
	}
	if o.Pod == nil {
		w.has[o.RunningPod.UID], w.orphans[o.RunningPod.UID] = true, true
		w.diary = append(w.diary, fmt.Sprintf("%s runtime-only %s", o.UpdateType, o.RunningPod.UID))
		return
	}
	w.has[o.Pod.UID] = true
	line := fmt.Sprintf("%s %s", o.UpdateType, o.Pod.UID)
	if k := o.KillPodOptions; k != nil {
		line += fmt.Sprintf(" within %d s", *k.PodTerminationGracePeriodSecondsOverride)
	}
	w.diary = append(w.diary, line)
}

func (w *world) SyncKnownPods(desired map[pod.UID]*v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid := range w.has {
		if desired[uid] == nil && !w.orphans[uid] {
			w.diary = append(w.diary, fmt.Sprintf("orphan %s", uid))
			w.orphans[uid] = true
		}
	}
}

func (w *world) Orphan(uid pod.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.orphans[uid] {
		w.diary = append(w.diary, fmt.Sprintf("orphan %s", uid))
		w.orphans[uid] = true
	}
}

func (w *world) WakePod(uid pod.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = append(w.woken, uid)
}

func (w *world) WakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.diary = append(w.diary, "wake all")
}

func (w *world) Has(uid pod.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.has[uid]
}

func start(t *testing.T) *world {
	w := newWorld(t)
	w.run()
	return w
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, wake: make(chan struct{}, 1), has: map[pod.UID]bool{}, orphans: map[pod.UID]bool{}, finished: pod.NewInbox[pod.UID](), changed: pod.NewInbox[pod.UID](),
		restored: make(chan struct{}, 1), relisted: make(chan struct{}), pods: pod.NewManager(), static: pod.NewInbox[pod.FullName](), resized: pod.NewInbox[pod.UID](),
		devices: pod.NewInbox[pod.UID](),
	}
}

// run runs a loop in the world until the test ends.
func (w *world) run() {
	t := w.t
	w.loop = syncloop.New(syncloop.Config{
		Source: w, Workers: w, Housekeeping: w, Finished: w.finished, Pods: w.pods, Changed: w.changed, Restored: w.restored, Relisted: w.relisted, Static: w.static, Resized: w.resized, Devices: w.devices,
		Leftovers: func() []*pod.Status { return w.left },
		Observed: func(uid pod.UID) (*pod.Status, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			i := slices.IndexFunc(w.left, func(s *pod.Status) bool { return s.UID == uid })
			if i < 0 {
				return nil, false
			}
			return w.left[i], true
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.loop.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (w *world) send(op pod.PodOperation, pods ...*v1.Pod) {
	w.mu.Lock()
	w.updates = append(w.updates, pod.PodUpdate{Op: op, Pods: pods, Source: pod.FileSource})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.diary, want) {
		w.t.Fatalf("diary:\n got %q\nwant %q", w.diary, want)
	}
	w.diary = nil
}

func newPod(uid string, age time.Duration) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Name, p.Namespace = pod.UID(uid), "pod-"+uid, "default"
	p.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
	return p
}

func TestOperationsBecomeUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		young, old := newPod("young", time.Minute), newPod("old", time.Hour)
		w.send(pod.ADD, young, old)
		w.expect("create old", "create young")
		w.send(pod.UPDATE, old)
		w.expect("update old")
		w.send(pod.DELETE, old)
		w.expect("update old")
		w.send(pod.RECONCILE, old)
		w.expect("reconcile old")
		w.send(pod.REMOVE, old)
		w.expect("kill old")
		if _, ok := w.pods.Get("old"); ok {
			t.Fatal("a removed pod is still desired")
		}
	})
}

// An object that goes while its pod is ending was deleted by force; whatever else goes leaves its
// pod the time that it has.
func TestRemovalOfEndingPods(t *testing.T) {
	for _, tc := range []struct {
		name   string
		source pod.Source
		ending bool
		want   string
	}{
		{"ending, of the API server", pod.APISource, true, "kill p within 0 s"},
		{"running, of the API server", pod.APISource, false, "kill p"},
		{"of a manifest", pod.FileSource, true, "kill p"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				p := newPod("p", 0)
				p.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(tc.source)}
				w.send(pod.ADD, p)
				w.expect("create p")
				if tc.ending {
					p = p.DeepCopy()
					p.DeletionTimestamp = new(metav1.Now())
				}
				w.send(pod.REMOVE, p)
				w.expect(tc.want)
			})
		})
	}
}

// The pods of one source may be handled before those of another that came with them: until all are,
// a mirror whose static pod is missing tells nothing. It is looked at again then.
func TestPodsAreKnownWhenAllAreHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		static, other, mirror := newPod("static", 0), newPod("other", 0), newPod("mirror", 0)
		static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file"}
		mirror.Name, mirror.Annotations = static.Name, map[string]string{pod.ConfigSourceAnnotation: "api", pod.ConfigMirrorAnnotation: "static"}
		var early []string
		w.updated = func(uid pod.UID) {
			if w.loop.KnowsPods() || uid == other.UID && !slices.Contains(w.static.Take(), pod.FullNameOf(mirror)) {
				early = append(early, string(uid))
			}
		}
		w.send(pod.ADD, mirror)
		w.send(pod.ADD, other)
		w.send(pod.ADD, static)
		w.run()
		synctest.Wait()
		if len(early) > 0 || !w.loop.KnowsPods() {
			t.Errorf("known when %v were handled; in the end: %t", early, w.loop.KnowsPods())
		}
		if got := w.static.Take(); len(got) != 1 || got[0] != pod.FullNameOf(mirror) {
			t.Errorf("told in the end of %v", got)
		}
	})
}

func TestMirrorsHaveNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		static, mirror := newPod("static", 0), newPod("mirror", 0)
		static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file"}
		mirror.Name, mirror.Annotations = static.Name, map[string]string{pod.ConfigSourceAnnotation: "api", pod.ConfigMirrorAnnotation: "static"}
		w.send(pod.ADD, static)
		w.send(pod.ADD, mirror)
		w.expect("create static")
		if got := w.static.Take(); len(got) != 1 || got[0] != pod.FullNameOf(static) {
			t.Fatalf("told of %v", got)
		}
		if uid := w.pods.TranslateUID("mirror"); uid != "static" {
			t.Fatalf("the mirror's UID leads to %s", uid)
		}
		w.send(pod.REMOVE, mirror)
		w.expect()
		if got := w.static.Take(); len(got) != 1 {
			t.Fatalf("told of %v", got)
		}
		if _, ok := w.pods.Get("static"); !ok {
			t.Fatal("the static pod went with its mirror")
		}
	})
}

func TestChangedPodsAreSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.send(pod.ADD, newPod("a", 0))
		w.expect("create a")
		w.changed.Put("a")
		w.changed.Put("unknown")
		w.expect("sync a")
		w.resized.Put("b")
		w.expect()
		if want := []pod.UID{"unknown", "b"}; !slices.Equal(w.woken, want) {
			t.Errorf("woken %q, want %q", w.woken, want)
		}
		w.devices.Put("a")
		w.expect("sync a")
		w.restored <- struct{}{}
		w.expect("wake all")
	})
}

func TestCleanups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.left = []*pod.Status{{UID: "a"}, {UID: "stray"}}
		close(w.relisted)
		w.expect() // no source was heard: everything may be wanted
		w.send(pod.ADD, newPod("a", 0))
		w.expect("create a", "kill runtime-only stray")
		// The worker of a pod that is still wanted left, as when a pod is put back while it ends.
		w.mu.Lock()
		delete(w.has, "a")
		delete(w.has, "stray")
		w.left = nil
		w.mu.Unlock()
		w.finished.Put("a")
		w.expect("create a")
	})
}

// What shows up later of a pod that nobody knows ends, too: a sandbox that an earlier agent had
// asked for may come after the first list.
func TestLateStrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		shows := func(uid pod.UID) {
			w.mu.Lock()
			w.left = append(w.left, &pod.Status{UID: uid})
			w.mu.Unlock()
			w.changed.Put(uid)
		}
		shows("early")
		w.expect() // it may be wanted by a source that was not heard yet
		w.send(pod.ADD, newPod("a", 0))
		w.expect("create a")
		shows("middle")
		w.expect() // it will be listed
		close(w.relisted)
		synctest.Wait()
		w.mu.Lock()
		slices.Sort(w.diary)
		w.mu.Unlock()
		w.expect("kill runtime-only early", "kill runtime-only middle")
		shows("late")
		w.expect("kill runtime-only late")
		w.changed.Put("gone")
		w.expect()
	})
}

// A pod that was evicted as its source let go of it has a worker that nobody told of that.
func TestWorkerOfAnUnwantedPodLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.mu.Lock()
		w.has["evicted"] = true
		w.mu.Unlock()
		w.finished.Put("evicted")
		w.expect() // its source may not have been heard yet
		w.send(pod.ADD, newPod("a", 0))
		w.expect("create a", "orphan evicted")
		w.mu.Lock()
		w.has["again"] = true
		w.mu.Unlock()
		w.finished.Put("again")
		w.finished.Put("a")
		w.expect("orphan again")
	})
}

func TestWithoutSourcesEverythingIsAStray(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seen = true
		w.left = []*pod.Status{{UID: "stray"}}
		w.run()
		w.expect()
		close(w.relisted)
		w.expect("kill runtime-only stray")
	})
}

// What comes to be at the runtime when it was listed long ago, as by a call that an earlier agent
// made, is a stray like any other.
func TestStrayThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		close(w.relisted)
		w.send(pod.ADD, newPod("a", 0))
		w.expect("create a")
		w.mu.Lock()
		w.left = []*pod.Status{{UID: "a"}, {UID: "stray"}}
		w.mu.Unlock()
		w.changed.Put("a")
		w.changed.Put("stray")
		w.expect("sync a", "kill runtime-only stray")
		w.changed.Put("stray")
		w.expect() // it ends
	})
}

func TestEmptySourceMakesStraysGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.left = []*pod.Status{{UID: "stray"}}
		close(w.relisted)
		w.send(pod.ADD)
		w.expect("kill runtime-only stray")
	})
}

func TestPodsOfOneSourceAreNoStraysWhileAnotherIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.left = []*pod.Status{{UID: "a"}, {UID: "b"}}
		close(w.relisted)
		synctest.Wait()
		w.mu.Lock()
		w.updates = []pod.PodUpdate{
			{Op: pod.ADD, Pods: []*v1.Pod{newPod("a", 0)}, Source: pod.FileSource},
			{Op: pod.ADD, Pods: []*v1.Pod{newPod("b", 0)}, Source: pod.HTTPSource},
		}
		w.mu.Unlock()
		w.wake <- struct{}{}
		w.expect("create a", "create b")
	})
}

// A loop that hangs does not answer.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ping := func(w *world) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return w.loop.Ping(ctx)
		}
		w := newWorld(t)
		w.hang = make(chan struct{})
		w.run()
		if err := ping(w); err != nil {
			t.Error(err)
		}
		w.wake <- struct{}{}
		synctest.Wait()
		if err := ping(w); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a loop that hangs answers: %v", err)
		}
		close(w.hang)
		if err := ping(w); err != nil {
			t.Error(err)
		}
	})
}

func TestIdleLoopSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.send(pod.ADD, newPod("a", 0))
		w.expect("create a")
		time.Sleep(24 * time.Hour)
		w.expect()
	})
}
