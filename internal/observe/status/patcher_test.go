package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

var podResource = schema.GroupResource{Resource: "pods"}

// server is an API server that knows pods only, and the rules of their deletion and their UIDs.
type server struct {
	t       *testing.T
	mu      sync.Mutex
	pods    map[string]*v1.Pod // by name
	fail    int                // so many calls fail
	blind   int                // so many deletions find nothing
	patches int
	next    int // for UIDs
}

func (s *server) lockedGet(name string) (*v1.Pod, error) {
	if s.fail > 0 {
		s.fail--
		return nil, apierrors.NewInternalError(errors.New("down"))
	}
	p, ok := s.pods[name]
	if !ok {
		return nil, apierrors.NewNotFound(podResource, name)
	}
	return p, nil
}

func (s *server) GetPod(_ context.Context, _, name string) (*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.lockedGet(name)
	return p.DeepCopy(), err
}

func (s *server) PatchPodStatus(_ context.Context, _, name string, patch []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.lockedGet(name)
	if err != nil {
		return err
	}
	var precondition struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal(patch, &precondition); err != nil {
		return err
	}
	if precondition.Metadata.UID != string(p.UID) {
		return apierrors.NewConflict(podResource, name, errors.New("uid"))
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if b, err = strategicpatch.StrategicMergePatch(b, patch, v1.Pod{}); err != nil {
		return err
	}
	var patched v1.Pod
	if err := json.Unmarshal(b, &patched); err != nil {
		return err
	}
	s.patches++
	q := p.DeepCopy()
	q.Status = patched.Status // the status subresource changes nothing else
	s.pods[name] = q
	return nil
}

func (s *server) DeletePod(_ context.Context, _, name string, uid pod.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blind > 0 {
		s.blind--
		return apierrors.NewNotFound(podResource, name)
	}
	p, err := s.lockedGet(name)
	if err != nil {
		return err
	}
	if p.UID != uid {
		return apierrors.NewConflict(podResource, name, errors.New("uid"))
	}
	delete(s.pods, name)
	return nil
}

func (s *server) CreatePod(_ context.Context, p *v1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail > 0 {
		s.fail--
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError}}
	}
	if _, ok := s.pods[p.Name]; ok {
		return apierrors.NewAlreadyExists(podResource, p.Name)
	}
	q := p.DeepCopy()
	s.next++
	q.UID = pod.UID(rune('0' + s.next))
	s.pods[p.Name] = q
	return nil
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.patches
}

func (s *server) get(name string) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

type patcherRig struct {
	*server
	manager *status.Manager
	pods    *pod.Manager
	states  *pod.States
	patcher *status.Patcher
	metrics *prometheus.Registry
	kept    []int // the patches so far, each time that it was asked to keep what is known of static pods
}

func runActor(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func startPatcher(t *testing.T) *patcherRig {
	log := slog.New(slog.DiscardHandler)
	j := journal.New(log)
	r := &patcherRig{server: &server{t: t, pods: map[string]*v1.Pod{}}, manager: status.NewManager(log, j), pods: pod.NewManager(), states: pod.NewStates(), metrics: prometheus.NewRegistry()}
	r.patcher = status.NewPatcher(status.PatcherConfig{
		API: r.server, Manager: r.manager, Pods: r.pods, States: r.states, Journal: j, Log: log,
		Metrics:     status.NewMetrics(r.metrics),
		BeforePatch: func(context.Context) { r.kept = append(r.kept, r.count()) },
	})
	runActor(t, r.patcher.Run)
	synctest.Wait()
	return r
}

func apiPod(name string, uid pod.UID) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = name, "default", uid
	p.Annotations = map[string]string{pod.ConfigSourceAnnotation: "api"}
	p.Status.Phase = v1.PodPending
	return p
}

func TestStatusIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "u")
		r.server.pods["web"] = p
		r.pods.Set(p)
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodRunning})
		synctest.Wait()
		if got := r.get("web"); got.Status.Phase != v1.PodRunning || r.patches != 1 {
			t.Fatalf("phase %s after %d patches", got.Status.Phase, r.patches)
		}
		r.patcher.Recheck("u")
		synctest.Wait()
		if r.patches != 1 {
			t.Fatal("a status that the API has is written again")
		}
		if len(r.kept) != 0 {
			t.Fatal("what the API server knows best is kept on disk")
		}
	})
}

func TestOutageOnlyDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "u")
		r.server.pods["web"] = p
		r.pods.Set(p)
		r.fail = 10
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodPending, Message: "one"})
		synctest.Wait()
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodRunning, Message: "two"})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		metricstest.Expect(t, r.metrics, map[string]float64{"kubelet_pod_status_sync_duration_seconds_count": 1})
		if took := metricstest.Values(t, r.metrics)["kubelet_pod_status_sync_duration_seconds_sum"]; took < 1 || took > 60 {
			t.Errorf("the API server has it after %v s, want some seconds, after the outage", took)
		}
		if got := r.get("web").Status; got.Message != "two" || r.patches != 1 {
			t.Fatalf("got %q after %d patches, want only the newest", got.Message, r.patches)
		}
	})
}

// Who flushes waits until the API server has the newest statuses, or does not take them, and no
// longer than it wants to.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		flush := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			return r.patcher.Flush(ctx, []pod.UID{"u", "stranger"})
		}
		p := apiPod("web", "u")
		r.server.pods["web"] = p
		r.pods.Set(p)
		r.states.Set("u", pod.Lifecycle{State: pod.Finished})
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodFailed})
		if err := flush(time.Hour); err != nil {
			t.Error(err)
		}
		if got := r.get("web").Status.Phase; got != v1.PodFailed {
			t.Errorf("when all is told, the API server has %s", got)
		}
		r.mu.Lock()
		r.fail = 100
		r.mu.Unlock()
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodFailed, Message: "another"})
		began := time.Now()
		if err := flush(time.Hour); err == nil || time.Since(began) > 10*time.Second {
			t.Errorf("a server that is away was told: %v after %v", err, time.Since(began))
		}
		short, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		if err := r.patcher.Flush(short, []pod.UID{"u"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waited for longer than it was to: %v", err)
		}
		r.mu.Lock()
		r.fail = 0
		r.mu.Unlock()
		time.Sleep(time.Minute)
		if got := r.get("web").Status.Message; got != "another" {
			t.Errorf("later the API server has %q", got)
		}
	})
}

func TestWhatOthersOverwroteIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "u")
		r.server.pods["web"] = p
		r.pods.Set(p)
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}})
		synctest.Wait()
		show := func(change func(*v1.PodStatus)) {
			r.mu.Lock()
			shown := r.server.pods["web"].DeepCopy()
			change(&shown.Status)
			r.server.pods["web"] = shown
			r.mu.Unlock()
			r.pods.Set(shown)
			r.patcher.Compare(shown)
			synctest.Wait()
		}
		show(func(*v1.PodStatus) {})
		if r.patches != 1 {
			t.Fatalf("%d patches after the server showed what it was told", r.patches)
		}
		// The node lifecycle controller does this when a node was not heard of for a while.
		show(func(s *v1.PodStatus) { s.Conditions[0].Status = v1.ConditionFalse })
		if got := r.get("web").Status.Conditions[0]; got.Status != v1.ConditionTrue {
			t.Fatalf("got %+v", got)
		}
	})
}

// The garbage collector of pods, or the node lifecycle controller, may end a pod before the agent
// hears of it.
func TestAnEndByOthersIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "u")
		r.pods.Set(p)
		ended := p.DeepCopy()
		ended.Status.Phase, ended.Status.Reason = v1.PodFailed, "NodeLost"
		r.server.pods["web"] = ended // and the watch has not told
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodRunning, HostIP: "192.0.2.1"})
		synctest.Wait()
		if got := r.get("web").Status; got.Phase != v1.PodFailed || got.Reason != "NodeLost" || got.HostIP != "192.0.2.1" {
			t.Fatalf("got phase %s, reason %q, host IP %q", got.Phase, got.Reason, got.HostIP)
		}
	})
}

func TestAnotherPodOfTheNameIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "old")
		r.pods.Set(p)
		r.server.pods["web"] = apiPod("web", "new")
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodFailed})
		time.Sleep(time.Minute)
		if r.patches != 0 || r.get("web").Status.Phase != v1.PodPending {
			t.Fatal("the status of an old pod was written to a new one")
		}
	})
}

func TestDeletedPodGoesWhenItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "u")
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		r.server.pods["web"] = p
		r.pods.Set(p)
		r.states.Set("u", pod.Lifecycle{State: pod.Terminating})
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodRunning})
		synctest.Wait()
		if r.get("web") == nil {
			t.Fatal("deleted while it still ends")
		}
		r.states.Set("u", pod.Lifecycle{State: pod.Terminated})
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodSucceeded})
		synctest.Wait()
		if got := r.get("web"); got == nil || got.Status.Phase != v1.PodSucceeded {
			t.Fatalf("not told, or deleted before everything it held is freed: %+v", got)
		}
		r.manager.Terminated(p) // changes nothing of the status
		synctest.Wait()
		if got := r.get("web"); got != nil {
			t.Fatalf("still there: %+v", got.Status)
		}
	})
}

// A deletion of which the watch told only together with the end, which was told meanwhile, leaves
// nothing to write but to let the pod go.
func TestDeletedPodGoesWhenNothingElseIsToBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		p := apiPod("web", "u")
		r.server.pods["web"] = p
		r.pods.Set(p)
		r.states.Set("u", pod.Lifecycle{State: pod.Finished})
		r.manager.Set(p, v1.PodStatus{Phase: v1.PodSucceeded})
		r.manager.Terminated(p)
		synctest.Wait()
		r.mu.Lock()
		deleted := r.server.pods["web"].DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		r.server.pods["web"] = deleted
		r.mu.Unlock()
		r.pods.Set(deleted)
		r.patcher.Compare(deleted)
		synctest.Wait()
		if got := r.get("web"); got != nil {
			t.Fatalf("still there: %+v", got.Status)
		}
	})
}

// What an earlier agent knew is not told as what is: after a reboot nothing of it may run.
func TestWhatAnEarlierAgentKnewIsNotTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statuses.json")
	static := apiPod("web", "u")
	static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file", pod.ConfigHashAnnotation: "u"}
	ready := v1.PodStatus{
		Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
	}
	synctest.Test(t, func(t *testing.T) {
		earlier, stop := agentOf(t, path)
		earlier.Set(static, ready)
		stop()
	})
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		status.NewKept(r.manager, path, slog.New(slog.DiscardHandler)).Load()
		mirror := apiPod("web", "m")
		mirror.Annotations[pod.ConfigMirrorAnnotation] = "u"
		mirror.Status = v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}}}
		r.server.pods["web"] = mirror
		r.pods.Set(static)
		r.pods.Set(mirror)
		r.patcher.Compare(mirror)
		r.patcher.Recheck("u")
		synctest.Wait()
		if r.count() != 0 {
			t.Fatalf("told before anything was seen: %+v", r.get("web").Status)
		}
		r.manager.Set(static, ready)
		synctest.Wait()
		if got := r.get("web").Status.Conditions[0]; got.Status != v1.ConditionTrue {
			t.Fatalf("not told when it was seen: %+v", got)
		}
	})
}

// A static pod whose name another pod has at the API server is told so, once.
func TestTheNameOfAMirrorIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		changed := pod.NewInbox[pod.FullName]()
		events := make(chan string, 100)
		mirrors := status.NewMirrors(status.MirrorsConfig{
			API: r.server, Pods: r.pods, Changed: changed, Node: func() (string, pod.UID) { return "node", "n" },
			Published: r.patcher.Recheck, Ending: func(pod.FullName) bool { return false }, Complete: func() bool { return true },
			Event: func(p *v1.Pod, eventtype, reason, message string) {
				events <- fmt.Sprint(p.UID, " ", eventtype, " ", reason, ": ", message)
			}, Log: slog.New(slog.DiscardHandler),
		})
		runActor(t, mirrors.Run)
		other := apiPod("web", "other")
		r.mu.Lock()
		r.server.pods["web"] = other
		r.mu.Unlock()
		r.pods.Set(other)
		static := apiPod("web", "hash1")
		static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file", pod.ConfigHashAnnotation: "hash1"}
		r.pods.Set(static)
		changed.Put(pod.FullNameOf(static))
		time.Sleep(time.Minute)
		const want = "hash1 Warning FailedCreate: The API server has another pod of this name (UID other), so it does not show this one. " +
			"Both run: delete that pod, or give this one another name in its manifest"
		if got := <-events; got != want || len(events) > 0 {
			t.Fatalf("events: %s, and %d more; want once %s", got, len(events), want)
		}
		r.mu.Lock()
		delete(r.server.pods, "web")
		r.mu.Unlock()
		r.pods.Remove(other)
		time.Sleep(time.Minute)
		if m := r.get("web"); m == nil || m.Annotations[pod.ConfigMirrorAnnotation] != "hash1" {
			t.Errorf("there is no mirror after the other pod is gone: %+v", m)
		}
	})
}

// A mirror whose static pod is gone goes, also when the API server that is to delete it has just
// started and does not know it yet.
func TestMirrorThatTheServerDoesNotKnowYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		mirror := apiPod("web", "mirror")
		mirror.Annotations = map[string]string{pod.ConfigSourceAnnotation: "api", pod.ConfigMirrorAnnotation: "hash1"}
		r.mu.Lock()
		r.server.pods["web"] = mirror
		r.server.blind = 2
		r.mu.Unlock()
		r.pods.Set(mirror)
		changed := pod.NewInbox[pod.FullName]()
		mirrors := status.NewMirrors(status.MirrorsConfig{
			API: r.server, Pods: r.pods, Changed: changed, Node: func() (string, pod.UID) { return "node", "n" },
			Published: r.patcher.Recheck, Ending: func(pod.FullName) bool { return false },
			Complete: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
		})
		runActor(t, mirrors.Run)
		changed.Put(pod.FullNameOf(mirror))
		time.Sleep(time.Minute)
		if m := r.get("web"); m != nil {
			t.Errorf("the mirror is still there: %+v", m)
		}
	})
}

// A mirror stays when its static pod is read last, while the mirror is being looked at.
func TestMirrorOfAStaticPodThatIsReadLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		static := apiPod("web", "hash1")
		static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file", pod.ConfigHashAnnotation: "hash1"}
		mirror := apiPod("web", "mirror")
		mirror.Annotations = map[string]string{pod.ConfigSourceAnnotation: "api", pod.ConfigMirrorAnnotation: "hash1"}
		changed := pod.NewInbox[pod.FullName]()
		mirrors := status.NewMirrors(status.MirrorsConfig{
			API: r.server, Pods: r.pods, Changed: changed, Node: func() (string, pod.UID) { return "node", "n" },
			Published: r.patcher.Recheck, Ending: func(pod.FullName) bool { return false },
			Complete: func() bool { r.pods.Set(static); return true }, Log: slog.New(slog.DiscardHandler),
		})
		runActor(t, mirrors.Run)
		r.mu.Lock()
		r.server.pods["web"] = mirror
		r.mu.Unlock()
		r.pods.Set(mirror)
		changed.Put(pod.FullNameOf(mirror))
		synctest.Wait()
		if m := r.get("web"); m == nil || m.UID != "mirror" {
			t.Errorf("the mirror that was there has gone: %+v", m)
		}
	})
}

func TestStaticPodIsToldOfThroughItsMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPatcher(t)
		changed, node := pod.NewInbox[pod.FullName](), make(chan struct{}, 1)
		var nodeUID pod.UID
		mirrors := status.NewMirrors(status.MirrorsConfig{
			API: r.server, Pods: r.pods, Changed: changed, NodeChanged: node, Node: func() (string, pod.UID) { return "node", nodeUID },
			Published: r.patcher.Recheck, Ending: func(pod.FullName) bool { return false }, Complete: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
		})
		runActor(t, mirrors.Run)
		static := apiPod("web", "hash1")
		static.Annotations = map[string]string{pod.ConfigSourceAnnotation: "file", pod.ConfigHashAnnotation: "hash1"}
		r.pods.Set(static)
		changed.Put(pod.FullNameOf(static))
		r.manager.Set(static, v1.PodStatus{Phase: v1.PodRunning, ObservedGeneration: 4})
		synctest.Wait()
		if r.get("web") != nil {
			t.Fatal("a mirror was made before the node is registered")
		}
		nodeUID = "n"
		node <- struct{}{}
		synctest.Wait()
		mirror := r.get("web")
		if mirror == nil || mirror.Annotations[pod.ConfigMirrorAnnotation] != "hash1" || len(mirror.OwnerReferences) != 1 || mirror.OwnerReferences[0].UID != "n" {
			t.Fatalf("mirror: %+v", mirror)
		}
		// The API source shows it.
		show := func() {
			m := r.get("web").DeepCopy()
			m.Annotations[pod.ConfigSourceAnnotation] = "api"
			r.pods.Set(m)
			changed.Put(pod.FullNameOf(m))
			synctest.Wait()
		}
		show()
		if got := r.get("web").Status; got.Phase != v1.PodRunning || got.ObservedGeneration != 0 {
			t.Fatalf("the mirror's status: %+v", got)
		}
		if !cmp.Equal(r.kept, []int{0}) {
			t.Fatalf("the status was kept after %v patches, want once, before the first", r.kept)
		}
		// Somebody deletes it: it comes back.
		gone, _ := r.pods.Mirror(pod.FullNameOf(static))
		r.mu.Lock()
		delete(r.server.pods, "web")
		r.mu.Unlock()
		r.pods.Remove(gone)
		changed.Put(pod.FullNameOf(static))
		synctest.Wait()
		if r.get("web") == nil {
			t.Fatal("the mirror did not come back")
		}
		show()
		// The manifest changes: so does the mirror.
		next := static.DeepCopy()
		next.UID, next.Annotations[pod.ConfigHashAnnotation] = "hash2", "hash2"
		r.pods.Remove(static)
		r.pods.Set(next)
		changed.Put(pod.FullNameOf(next))
		synctest.Wait()
		if got := r.get("web"); got == nil || got.Annotations[pod.ConfigMirrorAnnotation] != "hash2" {
			t.Fatalf("mirror: %+v", got)
		}
		show()
		// The manifest goes: so does the mirror.
		r.pods.Remove(next)
		changed.Put(pod.FullNameOf(next))
		synctest.Wait()
		if r.get("web") != nil {
			t.Fatal("the mirror outlives its pod")
		}
	})
}
