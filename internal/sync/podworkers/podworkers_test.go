package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/sync/admission"
	"berth/internal/sync/podsync"
	"berth/internal/sync/podworkers"
)

// world is a PodSyncer, an Observer and an Admitter that keep a diary of what the workers do.
type world struct {
	mu       sync.Mutex
	diary    []string
	reading  pod.Reading
	active   map[pod.UID]bool // the runtime has it
	refuse   bool
	admit    func(ctx context.Context, p *v1.Pod) (admission.Verdict, error)
	kept     map[pod.UID]bool // what the Admitter was told to keep of pods
	sync     func(ctx context.Context, r podsync.Request) (podsync.Result, error)
	stop     func(ctx context.Context, r podsync.Request) error
	inFlight map[pod.UID]bool
	// evictions are those that an earlier agent began, with what they grant.
	evictions map[pod.UID]int64
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.diary = append(w.diary, fmt.Sprintf(format, args...))
}

func (w *world) enter(t *testing.T, uid pod.UID) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inFlight[uid] {
		t.Errorf("two passes of pod %s at a time", uid)
	}
	w.inFlight[uid] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.inFlight[uid] = false
	}
}

type syncer struct {
	*world
	t *testing.T
}

func (s syncer) SyncPod(ctx context.Context, r podsync.Request) (podsync.Result, error) {
	defer s.enter(s.t, r.UID)()
	s.note("sync %s", r.UID)
	if s.sync != nil {
		return s.sync(ctx, r)
	}
	return podsync.Result{}, nil
}

func (s syncer) SyncTerminatingPod(ctx context.Context, r podsync.Request) error {
	defer s.enter(s.t, r.UID)()
	s.note("terminating %s %s", r.UID, r.Grace)
	if s.stop != nil {
		return s.stop(ctx, r)
	}
	return nil
}

func (s syncer) SyncTerminatedPod(_ context.Context, r podsync.Request) error {
	defer s.enter(s.t, r.UID)()
	s.note("terminated %s", r.UID)
	return nil
}

func (s syncer) RemovePod(_ context.Context, r podsync.Request) error {
	defer s.enter(s.t, r.UID)()
	if r.Again {
		s.note("make way for another %s", r.UID)
		return nil
	}
	s.note("remove %s", r.UID)
	return nil
}

func (w *world) Observe(_ context.Context, uid pod.UID, after pod.Reading) (*pod.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading++
	s := &pod.Status{UID: uid, Reading: max(w.reading, after+1)}
	if w.active[uid] {
		s.Sandboxes = []pod.SandboxStatus{{ID: "s", Ready: true}}
	}
	return s, nil
}

func (w *world) BeginReading() pod.Reading {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading++
	return w.reading
}

func (w *world) Hold(pod.UID) func() bool { return func() bool { return false } }

func (w *world) Admit(ctx context.Context, p *v1.Pod) (admission.Verdict, error) {
	w.note("admit %s", p.UID)
	if w.admit != nil {
		return w.admit(ctx, p)
	}
	return admission.Verdict{Admitted: !w.refuse}, nil
}

func (w *world) Adopt(p *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept[p.UID] = true
}

func (w *world) Forget(uid pod.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.kept, uid)
}

func (w *world) Retain(known map[pod.UID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.kept, func(uid pod.UID, _ bool) bool { return !known[uid] })
}

func (w *world) Resize(p *v1.Pod) *v1.Pod { return p }

func (w *world) Allocated(p *v1.Pod) *v1.Pod { return p }

func (w *world) RetryPending() {}

func (w *world) Evicted(uid pod.UID) (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	grace, ok := w.evictions[uid]
	return grace, ok
}

type rig struct {
	*podworkers.PodWorkers
	*world
	states  *pod.States
	metrics *prometheus.Registry
	t       *testing.T
}

func start(t *testing.T) *rig { return startWith(t, pod.NewStates(), nil) }

// startWith starts workers that ask the Admitter, or the world if it is nil.
func startWith(t *testing.T, states *pod.States, a podworkers.Admitter) *rig {
	w := &world{active: map[pod.UID]bool{}, inFlight: map[pod.UID]bool{}, kept: map[pod.UID]bool{}}
	log := slog.New(slog.DiscardHandler)
	r := &rig{world: w, states: states, metrics: prometheus.NewRegistry(), t: t}
	if a == nil {
		a = w
	}
	r.PodWorkers = podworkers.New(podworkers.Config{
		Syncer: syncer{w, t}, Observer: w, Admitter: a, Resizer: w, States: r.states, Evicted: w.Evicted, Metrics: r.metrics, Journal: journal.New(log), Log: log,
		Unobserved: func(*v1.Pod, error) {},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return r
}

func (r *rig) expect(want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.diary, want) {
		r.t.Fatalf("diary:\n got %q\nwant %q", r.diary, want)
	}
	r.diary = nil
}

// expectTogether is expect for what several workers do at the same time: only what is done to one
// pod has an order.
func (r *rig) expectTogether(want ...string) {
	r.t.Helper()
	synctest.Wait()
	byPod := func(diary []string) map[string][]string {
		out := map[string][]string{}
		for _, done := range diary {
			what, uid, _ := strings.Cut(done, " ")
			out[uid] = append(out[uid], what)
		}
		return out
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(byPod(want), byPod(r.diary)); diff != "" {
		r.t.Fatalf("diary by pod (-want +got):\n%s", diff)
	}
	r.diary = nil
}

func newPod(uid string) *v1.Pod {
	grace := int64(30)
	p := &v1.Pod{}
	p.UID, p.Name, p.Namespace = pod.UID(uid), "web", "default"
	p.Spec.TerminationGracePeriodSeconds = &grace
	return p
}

func newStatic(uid string) *v1.Pod {
	p := newPod(uid)
	p.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.FileSource)}
	return p
}

func (r *rig) update(t podworkers.SyncPodType, p *v1.Pod) {
	r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: t, Pod: p})
}

func TestLifeOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		p := newPod("a")
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		r.update(podworkers.SyncPodSync, p)
		r.expect("sync a")
		time.Sleep(time.Hour)
		r.expect() // nothing polls
		r.update(podworkers.SyncPodKill, p)
		r.expect("terminating a 30s", "terminated a")
		if l, _ := r.states.Get("a"); l.State != pod.Finished {
			t.Fatalf("state %v, want Finished", l.State)
		}
		r.update(podworkers.SyncPodUpdate, p)
		r.expect() // a finished pod stays finished
		r.SyncKnownPods(nil)
		r.expect("remove a")
		if r.Has("a") || len(r.Finished().Take()) != 1 {
			t.Fatal("the worker of a removed pod did not leave")
		}
		metricstest.Expect(t, r.metrics, map[string]float64{
			`kubelet_pod_worker_duration_seconds_count{operation_type="create"}`: 1, `kubelet_pod_worker_duration_seconds_count{operation_type="sync"}`: 1,
			`kubelet_pod_worker_duration_seconds_count{operation_type="terminating"}`: 1, `kubelet_pod_worker_duration_seconds_count{operation_type="terminated"}`: 1,
			`kubelet_pod_worker_start_duration_seconds_count`: 1, `kubelet_pod_worker_start_duration_seconds_sum`: 0,
		})
	})
}

// A pod that is evicted as its source lets go of it has a worker of which its source will not tell
// any more.
func TestEvictedPodThatNobodyWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.KillPod(newPod("a"), func(*v1.PodStatus) {}, make(chan struct{}))
		r.expect("terminated a")
		if got := r.Finished().Take(); !slices.Equal(got, []pod.UID{"a"}) {
			t.Fatalf("finished: %v", got)
		}
		r.Orphan("a")
		r.Orphan("unknown")
		r.expect("remove a")
		if got := r.Finished().Take(); r.Has("a") || !slices.Equal(got, []pod.UID{"a"}) {
			t.Fatalf("finished: %v", got)
		}
	})
}

// What an earlier agent began to evict is evicted by this one, with the grace period that was
// granted then, whatever is said of the pod first.
func TestEvictionOfAnEarlierAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.evictions = map[pod.UID]int64{"a": 7, "b": 7, "c": 60}
		r.active["a"], r.active["b"], r.active["c"] = true, true, true
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("terminating a 7s", "terminated a")
		p, five := newPod("b"), int64(5)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{}, &five
		r.update(podworkers.SyncPodUpdate, p)
		r.expect("terminating b 5s", "terminated b")
		r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, Pod: newPod("c"), KillPodOptions: &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: &five}})
		r.expect("terminating c 5s", "terminated c")
		for _, uid := range []pod.UID{"a", "b", "c"} {
			if l, _ := r.states.Get(uid); !l.Evicted {
				t.Errorf("%s: %+v, want it to count as evicted", uid, l)
			}
		}
		r.SyncKnownPods(nil)
		r.expectTogether("remove a", "remove b", "remove c")
		// All of it was removed, and what was known of it: a pod of that UID begins anew.
		delete(r.evictions, "a")
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("sync a")
	})
}

func TestTerminalPhaseEndsThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.sync = func(context.Context, podsync.Request) (podsync.Result, error) {
			return podsync.Result{Terminal: true}, nil
		}
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("admit a", "sync a", "terminating a 30s", "terminated a")
	})
}

func TestRefusedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.refuse = true
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("admit a", "terminated a") // an earlier agent may have begun with it
		r.SyncKnownPods(nil)
		r.expect("remove a")
	})
}

func TestKillInterruptsThePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.sync = func(ctx context.Context, _ podsync.Request) (podsync.Result, error) {
			<-ctx.Done()
			return podsync.Result{}, ctx.Err()
		}
		p := newPod("a")
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		r.update(podworkers.SyncPodKill, p)
		r.expect("terminating a 30s", "terminated a")
	})
}

func TestGraceOnlyShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		var calls int
		r.stop = func(ctx context.Context, _ podsync.Request) error {
			if calls++; calls == 2 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		p := newPod("a")
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		kill := func(grace int64, done chan struct{}) {
			r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, Pod: p, KillPodOptions: &podworkers.KillPodOptions{
				PodTerminationGracePeriodSecondsOverride: &grace, CompletedCh: done,
			}})
		}
		first, second := make(chan struct{}), make(chan struct{})
		kill(20, first)
		r.expect("terminating a 20s")
		kill(60, second) // longer: ignored
		r.expect()
		kill(5, nil)
		r.expect("terminating a 5s", "terminated a")
		<-first
		<-second
	})
}

func TestFailedPassIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		var fail error = errors.New("no")
		r.sync = func(context.Context, podsync.Request) (podsync.Result, error) { return podsync.Result{}, fail }
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("admit a", "sync a")
		fail = nil
		time.Sleep(9 * time.Second)
		r.expect()
		time.Sleep(7 * time.Second) // 10 s and up to half as much again
		r.expect("sync a")
	})
}

func TestWakeAllReachesEndingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		fail := errors.New("the runtime is down")
		r.stop = func(context.Context, podsync.Request) error { return fail }
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.update(podworkers.SyncPodCreate, newPod("b"))
		synctest.Wait()
		r.update(podworkers.SyncPodKill, newPod("a"))
		synctest.Wait()
		r.mu.Lock()
		r.diary = nil
		r.mu.Unlock()
		fail = nil
		r.WakeAll()
		synctest.Wait()
		r.mu.Lock()
		slices.Sort(r.diary)
		r.mu.Unlock()
		r.expect("sync b", "terminated a", "terminating a 30s")
	})
}

func TestRetryAtIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		at := time.Now().Add(20 * time.Second)
		r.sync = func(context.Context, podsync.Request) (podsync.Result, error) {
			return podsync.Result{RetryAt: at}, nil
		}
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("admit a", "sync a")
		r.sync = nil
		time.Sleep(19 * time.Second)
		r.expect()
		time.Sleep(time.Second)
		r.expect("sync a")
	})
}

func TestTouchedPodIsLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		touched := true
		r.sync = func(context.Context, podsync.Request) (podsync.Result, error) {
			defer func() { touched = false }()
			return podsync.Result{Touched: touched}, nil
		}
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("admit a", "sync a", "sync a")
	})
}

func TestStaticPodsOfOneNameFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		release := make(chan struct{})
		r.stop = func(ctx context.Context, q podsync.Request) error {
			if q.UID == "old" {
				<-release
			}
			return nil
		}
		old, next, last := newStatic("old"), newStatic("new"), newStatic("newest")
		r.update(podworkers.SyncPodCreate, old)
		r.expect("admit old", "sync old")
		r.update(podworkers.SyncPodKill, old)
		r.update(podworkers.SyncPodCreate, next)
		r.update(podworkers.SyncPodCreate, last)
		r.SyncKnownPods(map[pod.UID]*v1.Pod{"new": next, "newest": last})
		r.expect("terminating old 30s")
		r.SyncKnownPods(map[pod.UID]*v1.Pod{"newest": last}) // replaced while it waits
		synctest.Wait()
		r.mu.Lock()
		r.diary = nil
		r.mu.Unlock()
		close(release)
		r.expect("terminated old", "remove old", "admit newest", "sync newest")
	})
}

func TestRuntimeOnlyPodIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		gone := &pod.Status{UID: "x", Name: "web", Namespace: "default", Sandboxes: []pod.SandboxStatus{{}}}
		r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodSync, RunningPod: gone})
		r.expect()
		r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, RunningPod: gone})
		r.expect("terminating x 1s", "terminated x", "remove x")
		r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, RunningPod: &pod.Status{UID: "y"}}) // of which there are files
		r.expect("terminating y 1s", "terminated y", "remove y")
		metricstest.Expect(t, r.metrics, map[string]float64{"kubelet_orphaned_runtime_pods_total": 1})
	})
}

// A manifest can come back while what an earlier agent left of its pod still ends. Its spec does
// not make the leftovers the pod that is wanted.
func TestRuntimeOnlyPodIsWantedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		release := make(chan struct{})
		r.stop = func(context.Context, podsync.Request) error {
			<-release
			return nil
		}
		p := newStatic("x")
		r.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, RunningPod: &pod.Status{UID: "x", Name: "web", Namespace: "default"}})
		r.expect("terminating x 1s")
		r.update(podworkers.SyncPodCreate, p)
		r.update(podworkers.SyncPodSync, p) // as when one of its containers has ended
		close(release)
		r.expect("terminated x", "make way for another x")
		if r.Has("x") {
			t.Fatal("the worker of the leftovers did not leave")
		}
	})
}

func TestSameUIDAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		p := newStatic("a")
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		r.update(podworkers.SyncPodKill, p)
		r.SyncKnownPods(nil)
		// While it ends: the loop creates it anew when the worker has left.
		r.update(podworkers.SyncPodCreate, p)
		r.update(podworkers.SyncPodCreate, p) // said twice
		r.expect("terminating a 30s", "terminated a", "make way for another a")
		metricstest.Expect(t, r.metrics, map[string]float64{`kubelet_restarted_pods_total{static="true"}`: 1})
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
	})
}

// A pod that came back while it ended, and went again, is removed like any other.
func TestSameUIDAgainAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		release := make(chan struct{})
		r.stop = func(context.Context, podsync.Request) error {
			<-release
			return nil
		}
		p := newStatic("a")
		remove := podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, Pod: p, Wanted: podworkers.Unwanted}
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		r.UpdatePod(remove)
		r.update(podworkers.SyncPodCreate, p)
		r.update(podworkers.SyncPodSync, p)
		r.UpdatePod(remove)
		r.expect("terminating a 30s")
		close(release)
		r.expect("terminated a", "remove a")
	})
}

func TestStopLeavesPodsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{active: map[pod.UID]bool{}, inFlight: map[pod.UID]bool{}, kept: map[pod.UID]bool{}}
		log := slog.New(slog.DiscardHandler)
		workers := podworkers.New(podworkers.Config{
			Syncer: syncer{w, t}, Observer: w, Admitter: w, Resizer: w, States: pod.NewStates(), Evicted: w.Evicted, Unobserved: func(*v1.Pod, error) {}, Journal: journal.New(log), Log: log,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- workers.Run(ctx) }()
		synctest.Wait()
		workers.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodCreate, Pod: newPod("a")})
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if want := []string{"admit a", "sync a"}; !slices.Equal(w.diary, want) {
			t.Fatalf("diary %q, want %q", w.diary, want)
		}
	})
}

func TestDeletedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		p := newPod("a")
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		deleted := p.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		five := int64(5)
		deleted.DeletionGracePeriodSeconds = &five
		r.update(podworkers.SyncPodUpdate, deleted)
		// What is left of it stays until the API server has let go of it.
		r.expect("terminating a 5s", "terminated a")
		r.SyncKnownPods(nil)
		r.expect("remove a")
	})
}

// A status that the agent wrote comes back from the API server: no pass has anything to do for it,
// but the next one has it. What others write in it is worth a pass.
func TestOwnStatusCostsNoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		var last v1.PodStatus
		r.sync = func(_ context.Context, q podsync.Request) (podsync.Result, error) {
			last = q.Pod.Status
			return podsync.Result{}, nil
		}
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("admit a", "sync a")
		now := newPod("a")
		with := func(change func(*v1.PodStatus)) *v1.Pod {
			now = now.DeepCopy()
			change(&now.Status)
			return now
		}
		own := with(func(s *v1.PodStatus) {
			s.Phase, s.PodIP = v1.PodRunning, "10.0.0.7"
			s.ContainerStatuses = []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Message: "try 2"}}}}
			s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		})
		own.ResourceVersion = "2"
		r.update(podworkers.SyncPodReconcile, own)
		r.expect()
		r.update(podworkers.SyncPodSync, own)
		r.expect("sync a")
		if last.PodIP != "10.0.0.7" {
			t.Errorf("the next pass has the status %+v, want the newest", last)
		}
		claim := "web-gpu"
		for _, of := range []func(*v1.PodStatus){
			func(s *v1.PodStatus) {
				s.Conditions = append(s.Conditions, v1.PodCondition{Type: "example.com/gate", Status: v1.ConditionTrue})
			},
			func(s *v1.PodStatus) { s.Conditions[1].Status = v1.ConditionFalse },
			func(s *v1.PodStatus) { s.Conditions = s.Conditions[:1] },
			func(s *v1.PodStatus) {
				s.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
			},
		} {
			r.update(podworkers.SyncPodReconcile, with(of))
			r.expect("sync a")
		}
		r.update(podworkers.SyncPodReconcile, with(func(s *v1.PodStatus) { s.Phase = v1.PodFailed }))
		r.expect("terminating a 30s", "terminated a")
		r.update(podworkers.SyncPodReconcile, with(func(s *v1.PodStatus) { s.Reason = "Evicted" }))
		r.expect()
	})
}

// What wakes a worker during a pass is passed on to the pass, and no wake-up is lost that the pass
// has not taken.
func TestWakeUpsDuringAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		goOn := make(chan struct{})
		taken := func(ctx context.Context, q podsync.Request) {
			for {
				select {
				case <-q.Changed:
					r.note("changed %s", q.UID)
				case <-goOn:
					return
				case <-ctx.Done():
					return
				}
			}
		}
		left := func(ctx context.Context, _ podsync.Request) {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
		}
		r.sync = func(ctx context.Context, q podsync.Request) (podsync.Result, error) {
			taken(ctx, q)
			return podsync.Result{}, nil
		}
		p := newPod("a")
		r.update(podworkers.SyncPodCreate, p)
		r.expect("admit a", "sync a")
		r.update(podworkers.SyncPodSync, p)
		r.expect("changed a")
		goOn <- struct{}{}
		r.expect("sync a") // for what else the wake-up was
		goOn <- struct{}{}
		r.expect()

		pass, fail := taken, errors.New("no")
		r.stop = func(ctx context.Context, q podsync.Request) error {
			pass(ctx, q)
			return fail
		}
		r.update(podworkers.SyncPodKill, p)
		r.expect("terminating a 30s")
		r.WakePod("a")
		r.expect("changed a")
		goOn <- struct{}{}
		r.expect() // it was taken: the failed pass waits for its time
		time.Sleep(20 * time.Second)
		r.expect("terminating a 30s")
		pass = left
		goOn <- struct{}{}
		time.Sleep(20 * time.Second)
		r.expect("terminating a 30s")
		r.WakePod("a")
		r.expect()
		goOn <- struct{}{}
		r.expect("terminating a 30s") // nobody took it
		fail = nil
		goOn <- struct{}{}
		r.expect("terminated a")
	})
}
