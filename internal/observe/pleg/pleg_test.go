package pleg_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/pleg"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

const image = "berth.local/hello:1"

// rig is a PLEG over the fake runtime, in a bubble.
type rig struct {
	*pleg.PLEG
	fake    *critest.Runtime
	client  *cri.Client
	journal *journal.Journal
	// registry has the metrics.
	registry *prometheus.Registry
}

func start(t *testing.T, opts ...critest.Option) *rig {
	t.Helper()
	fake := critest.Start(t, append(opts, critest.WithImages(image))...)
	client, err := cri.New(cri.Config{Endpoint: "fake", Dial: fake.Dialer()})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := &rig{journal: journal.New(log), registry: prometheus.NewRegistry(), fake: fake, client: client}
	r.PLEG = pleg.New(client.Observer, r.journal, log, r.registry)
	messagestest.SawError(r.Health())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	settle()
	return r
}

// settle lets everything that needs no more than three seconds of time happen: relists, retries and
// reads among them.
func settle() {
	time.Sleep(3 * time.Second)
	synctest.Wait()
}

// run starts a pod with one container.
func (r *rig) run(t *testing.T, uid, container string) {
	t.Helper()
	r.runAgain(t, uid, container, 0)
}

// runAgain is run in the pod's next sandbox.
func (r *rig) runAgain(t *testing.T, uid, container string, attempt uint32) {
	t.Helper()
	ctx := t.Context()
	labels := map[string]string{cri.PodUIDLabel: uid, cri.PodNameLabel: "web-" + uid, cri.PodNamespaceLabel: "default"}
	sandboxConfig := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web-" + uid, Namespace: "default", Uid: uid, Attempt: attempt}, Labels: labels,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}}},
	}
	sb, err := r.client.RunPodSandbox(ctx, sandboxConfig, "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.client.CreateContainer(ctx, sb, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: container}, Image: &runtimeapi.ImageSpec{Image: image}, Labels: labels,
	}, sandboxConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) expectChanged(t *testing.T, want ...pod.UID) {
	t.Helper()
	got := r.Changed().Take()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("changed pods: got %v, want %v", got, want)
	}
}

func (r *rig) expectState(t *testing.T, uid pod.UID, container string, want pod.ContainerState) {
	t.Helper()
	s, ok := r.Newest(uid)
	if !ok {
		t.Fatalf("pod %s is not in the cache", uid)
	}
	if c := s.FindContainer(container); c == nil || c.State != want {
		t.Fatalf("container %s of pod %s: got %+v, want state %v", container, uid, c, want)
	}
}

func TestEventsWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "c")
		synctest.Wait()
		r.expectChanged(t, "a")
		r.expectState(t, "a", "c", pod.StateRunning)

		r.fake.Kill("c", 3)
		synctest.Wait() // no time passes: an event, not a relist
		r.expectChanged(t, "a")
		r.expectState(t, "a", "c", pod.StateExited)
	})
}

func TestRelistFindsWhatEventsDoNotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "c")
		settle()
		r.Changed().Take()
		if !r.Streaming() || len(r.Broke()) != 0 {
			t.Error("the open event stream is reported as broken")
		}

		r.fake.Down()
		synctest.Wait()
		if r.Streaming() || len(r.Broke()) != 1 {
			t.Error("the broken event stream is not reported")
		}
		r.fake.Kill("c", 1)
		settle()
		if r.Health() == nil {
			t.Fatal("healthy while the runtime is down")
		}
		r.fake.Serve()
		settle()
		r.expectChanged(t, "a")
		r.expectState(t, "a", "c", pod.StateExited)
		select {
		case <-r.Restored():
		default:
			t.Fatal("nobody was told that the runtime is back")
		}
		entries := r.journal.Read("default", "web-a")
		if len(entries) != 1 || entries[0].Decision != "the container runtime answers again" || entries[0].Took <= 0 {
			t.Errorf("the pod's journal: %+v", entries)
		}
		if err := r.Health(); err != nil {
			t.Fatalf("unhealthy: %v", err)
		}
	})
}

func TestPollsWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, critest.WithoutEvents())
		r.run(t, "a", "c")
		if r.Streaming() {
			t.Error("a runtime without events has an open event stream")
		}
		time.Sleep(pollPeriod)
		synctest.Wait()
		r.expectChanged(t, "a")
		r.fake.Kill("c", 3)
		time.Sleep(pollPeriod)
		synctest.Wait()
		r.expectChanged(t, "a")
		r.expectState(t, "a", "c", pod.StateExited)
	})
}

const pollPeriod = 1100 * time.Millisecond

func TestObserveReadsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "c")
		settle()
		mark := r.BeginReading()
		s, err := r.Observe(t.Context(), "a", mark)
		if err != nil {
			t.Fatal(err)
		}
		if s.Reading <= mark {
			t.Fatalf("reading %d is not newer than mark %d", s.Reading, mark)
		}
		r.fake.Calls.Reset()
		again, err := r.Observe(t.Context(), "a", mark)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(r.fake.Calls.All()); n != 0 || again != s {
			t.Fatalf("an observation that is new enough was read again with %d calls", n)
		}
		unknown, err := r.Observe(t.Context(), "nobody", r.BeginReading())
		if err != nil || len(unknown.Sandboxes) != 0 {
			t.Fatalf("unknown pod: got %+v, %v; want an empty status", unknown, err)
		}
	})
}

func TestObserveSharesOneReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.fake.Calls.SetLatency("ListPodSandbox", time.Second)
		r.fake.Calls.Reset()
		mark := r.BeginReading()
		results := make(chan error, 10)
		for range cap(results) {
			go func() {
				_, err := r.Observe(t.Context(), "a", mark)
				results <- err
			}()
		}
		for range cap(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if n := r.fake.Calls.Count("ListPodSandbox"); n != 1 {
			t.Fatalf("%d readings for callers of the same time, want 1", n)
		}
	})
}

func TestObserveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		release := r.fake.Calls.Stall()
		defer release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Observe(ctx, "a", r.BeginReading()); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the context's error", err)
		}
	})
}

func TestHoldKeepsEventsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		release := r.Hold("a")
		r.run(t, "a", "c")
		synctest.Wait()
		r.expectChanged(t)
		if _, ok := r.Newest("a"); ok {
			t.Fatal("the pod was read while it was held")
		}
		if !release() {
			t.Fatal("release does not tell of the events that were held back")
		}
		if r.Hold("a")() {
			t.Fatal("release tells of events that were not")
		}
	})
}

func TestSlowPodDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "slow")
		r.run(t, "b", "quick")
		settle()
		r.Changed().Take()
		r.fake.Calls.Inject(critest.Fault{Method: "ListPodSandbox", Times: -1, Hang: true, Match: func(req any) bool {
			return req.(*runtimeapi.ListPodSandboxRequest).GetFilter().GetLabelSelector()[cri.PodUIDLabel] == "a"
		}})
		r.fake.Kill("slow", 1)
		r.fake.Kill("quick", 1)
		synctest.Wait()
		r.expectChanged(t, "b")
		r.expectState(t, "b", "quick", pod.StateExited)
	})
}

func TestRemovedPodIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "c")
		settle()
		r.Changed().Take()
		r.fake.RemoveBehindBack("web-a")
		if _, err := r.Observe(t.Context(), "a", r.BeginReading()); err != nil {
			t.Fatal(err)
		}
		if _, ok := r.Newest("a"); ok {
			t.Fatal("the cache keeps a pod that the runtime does not have")
		}
	})
}

func TestIdleStreamDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "c")
		settle()
		r.fake.Calls.Reset()
		time.Sleep(time.Hour)
		// A full relist is two lists; every five minutes.
		if n := len(r.fake.Calls.All()); n > 2*12 {
			t.Fatalf("%d calls of the runtime in an idle hour", n)
		}
	})
}

// follow runs another PLEG over the runtime of the rig.
func (r *rig) follow(t *testing.T, runtime pleg.Runtime) *pleg.PLEG {
	t.Helper()
	g := pleg.New(runtime, r.journal, slog.New(slog.DiscardHandler), nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return g
}

// An agent that starts over pods reads them from what it listed: for none of them are lists asked
// for.
func TestPodsAreReadFromTheRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		for _, uid := range []string{"a", "b", "c"} {
			r.run(t, uid, "main-"+uid)
		}
		settle()
		r.fake.Calls.Reset()
		g := r.follow(t, r.client.Observer) // which relists at once, and again when the stream is open
		for method, want := range map[string]int{"ListPodSandbox": 2, "ListContainers": 2, "PodSandboxStatus": 3, "ContainerStatus": 3} {
			if n := r.fake.Calls.Count(method); n != want {
				t.Errorf("%d calls of %s for three pods, want %d", n, method, want)
			}
		}
		for _, uid := range []pod.UID{"a", "b", "c"} {
			if s, ok := g.Newest(uid); !ok || s.FindContainer("main-"+string(uid)) == nil || s.Name != "web-"+string(uid) || len(s.IPs) != 1 {
				t.Errorf("pod %s was read as %+v", uid, s)
			}
		}
	})
}

// lateLists is a runtime whose lists of all pods arrive when they are released.
type lateLists struct {
	*cri.Observer
	release chan struct{}
}

func (l lateLists) ListPods(ctx context.Context) (map[pod.UID]*cri.RuntimePod, error) {
	pods, err := l.Observer.ListPods(ctx)
	<-l.release
	return pods, err
}

// A list that is older than what is known of a pod is no ground to read the pod from.
func TestRelistThatIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "old")
		settle()
		release := make(chan struct{})
		g := r.follow(t, lateLists{r.client.Observer, release})
		t.Cleanup(func() { close(release) })
		r.runAgain(t, "a", "new", 1)
		mark := g.BeginReading()
		if s, err := g.Observe(t.Context(), "a", mark); err != nil || s.FindContainer("new") == nil {
			t.Fatalf("got %+v, %v", s, err)
		}
		release <- struct{}{}
		synctest.Wait() // no time passes: no second relist mends it
		s, ok := g.Newest("a")
		if !ok || s.FindContainer("old") == nil || s.FindContainer("new") == nil || s.Reading <= mark {
			t.Errorf("after a list that was older the pod is %+v", s)
		}
	})
}
