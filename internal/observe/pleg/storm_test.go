package pleg_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

// calm is after how long, at the latest, the seen state is the runtime's when nothing happens any
// more: the rare relist, and late events.
const calm = 6 * time.Minute

// What becomes of events decides how soon changes are seen, never what is seen in the end.
func TestConvergesWhateverBecomesOfEvents(t *testing.T) {
	scripts := map[string]func(*rand.Rand) critest.EventScript{
		"delivered":      func(*rand.Rand) critest.EventScript { return nil },
		"all lost":       func(*rand.Rand) critest.EventScript { return critest.LosesEvery(1) },
		"some lost":      func(*rand.Rand) critest.EventScript { return critest.LosesEvery(3) },
		"doubled":        func(*rand.Rand) critest.EventScript { return critest.DoublesAll(3 * time.Second) },
		"delayed":        func(*rand.Rand) critest.EventScript { return critest.DelaysAll(30 * time.Second) },
		"in any order":   func(r *rand.Rand) critest.EventScript { return critest.Shuffles(r, 30*time.Second) },
		"close together": func(r *rand.Rand) critest.EventScript { return critest.Shuffles(r, 20*time.Millisecond) },
	}
	for name, script := range scripts {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 1))
					r := start(t)
					r.fake.Events.SetScript(script(rand.New(rand.NewPCG(seed, 2)))) // the runtime's own: it is asked by many goroutines
					r.storm(t, random)
					time.Sleep(calm)
					synctest.Wait()
					r.expectSeen(t)
				})
			})
		}
	}
}

// storm lets pods come, change and go, and the runtime and its streams break.
func (r *rig) storm(t *testing.T, random *rand.Rand) {
	t.Helper()
	pods := 0
	for range 60 {
		running := slices.DeleteFunc(r.fake.Containers(), func(c critest.Container) bool {
			return c.State != runtimeapi.ContainerState_CONTAINER_RUNNING
		})
		sandboxes := r.fake.Sandboxes()
		switch n := random.IntN(10); {
		case n < 4 || len(running) == 0:
			pods++
			r.run(t, fmt.Sprint("pod-", pods), "c")
		case n < 7:
			r.must(t, r.fake.Kill(running[random.IntN(len(running))].ID, int32(random.IntN(3))))
		case n == 7:
			r.must(t, r.fake.RemoveBehindBack(sandboxes[random.IntN(len(sandboxes))].ID))
		case n == 8:
			r.fake.Events.BreakStreams(status.Error(codes.Internal, "the stream broke"))
		default:
			r.fake.Down()
			time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
			if len(running) > 0 {
				r.must(t, r.fake.Kill(running[0].ID, 1))
			}
			r.must(t, r.fake.Serve())
			time.Sleep(5 * time.Second) // the client's back-off
		}
		r.expectNoDuplicates(t)
		time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
	}
}

func (r *rig) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expectSeen compares what PLEG shows with what the runtime has.
func (r *rig) expectSeen(t *testing.T) {
	t.Helper()
	want, got := map[string]string{}, map[string]string{}
	for _, sb := range r.fake.Sandboxes() {
		want[sb.Metadata.Uid+"/"+sb.ID] = fmt.Sprint(sb.Ready)
	}
	for _, c := range r.fake.Containers() {
		want[c.Pod.Uid+"/"+c.ID] = strings.ToLower(strings.TrimPrefix(c.State.String(), "CONTAINER_"))
	}
	for _, s := range r.Known() {
		for _, sb := range s.Sandboxes {
			got[string(s.UID)+"/"+string(sb.ID)] = fmt.Sprint(sb.Ready)
		}
		for _, c := range s.Containers {
			got[string(s.UID)+"/"+string(c.ID)] = c.State.String()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the runtime has and PLEG shows (-runtime +PLEG):\n%s", diff)
	}
}

func (r *rig) expectNoDuplicates(t *testing.T) {
	t.Helper()
	for _, s := range r.Known() {
		ids := map[pod.ContainerID]bool{}
		for _, c := range s.Containers {
			if ids[c.ID] {
				t.Fatalf("pod %s shows container %s twice", s.UID, c.ID)
			}
			ids[c.ID] = true
		}
	}
}

// mostAtOnce returns how many calls of a method were under way at a time.
func mostAtOnce(calls []critest.Call, method string) int {
	changes := map[time.Time]int{}
	for _, c := range calls {
		if c.Method == method && !c.Done.IsZero() {
			changes[c.At]++
			changes[c.Done]--
		}
	}
	now, most := 0, 0
	for _, at := range slices.SortedFunc(maps.Keys(changes), time.Time.Compare) {
		now += changes[at]
		most = max(most, now)
	}
	return most
}

// Ten thousand events a second about pods cost each of them one reading at a time.
func TestFloodOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods, takes, length = 20, 50 * time.Millisecond, 3 * time.Second
		r := start(t)
		var uids []string
		for i := range pods {
			uids = append(uids, fmt.Sprint("pod-", i))
			r.run(t, uids[i], "c")
		}
		settle()
		r.Changed().Take()
		r.fake.Calls.SetLatency("ListContainers", takes)
		r.fake.Calls.Reset()
		r.fake.Events.Flood(10_000, length/2, uids...)
		r.must(t, r.fake.Kill("web-pod-7/c", 3))
		r.fake.Events.Flood(10_000, length/2, uids...)
		settle()
		r.expectChanged(t, "pod-7") // nobody is told of what did not change
		r.expectSeen(t)
		calls := r.fake.Calls.All()
		if n := mostAtOnce(calls, "ListContainers"); n > pods {
			t.Errorf("%d readings of %d pods at a time", n, pods)
		}
		if n, most := r.fake.Calls.Count("ListContainers"), pods*int(length/takes+3); n > most {
			t.Errorf("%d readings in the flood, %d are enough", n, most)
		}
	})
}

// Events about ever new pods, which the runtime does not have, take a bounded number of readings,
// and what happens meanwhile is seen.
func TestFloodOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		for i := range 5 {
			r.run(t, fmt.Sprint("pod-", i), "c")
		}
		settle()
		r.fake.Calls.SetLatency("ListContainers", time.Second)
		var strangers []string
		for i := range 20_000 {
			strangers = append(strangers, fmt.Sprint("stranger-", i))
		}
		r.fake.Calls.Reset()
		r.fake.Events.Flood(10_000, time.Second, strangers...)
		r.must(t, r.fake.Kill("web-pod-3/c", 3)) // its event finds no room
		r.fake.Events.Flood(10_000, time.Second, strangers[10_000:]...)
		settle()
		settle()
		r.expectSeen(t)
		if n := mostAtOnce(r.fake.Calls.All(), "ListContainers"); n > 256+1 {
			t.Errorf("%d readings at a time", n)
		}
		if n := len(r.Known()); n != 5 {
			t.Errorf("%d pods in the cache, the runtime has 5", n)
		}
	})
}

// A relist that finds many pods new reads them in turn.
func TestRelistOfManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]critest.Option{nil, {critest.WithStreamedLists()}} {
			r := start(t, opts...)
			r.fake.Events.SetScript(critest.LosesEvery(1))
			for i := range 400 {
				r.run(t, fmt.Sprint("pod-", i), "c")
			}
			settle()
			if n := len(r.Known()); n != 0 {
				t.Fatalf("%d pods were seen without events", n)
			}
			r.fake.Calls.Reset()
			r.fake.Calls.SetLatency("ContainerStatus", 10*time.Millisecond)
			r.fake.Events.BreakStreams(status.Error(codes.Internal, "broken"))
			settle()
			r.expectSeen(t)
			if n := mostAtOnce(r.fake.Calls.All(), "ContainerStatus"); n > 256 || n < 100 {
				t.Errorf("%d readings at a time", n)
			}
		}
	})
}

func TestListsAreStreamedWhereOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			opts              []critest.Option
			streams, ordinary bool
		}{
			{opts: nil, ordinary: true},
			{opts: []critest.Option{critest.WithStreamedLists()}, streams: true},
		} {
			r := start(t, tt.opts...)
			for i := range 120 { // more than a part of a streamed list
				r.run(t, fmt.Sprint("pod-", i), "c")
			}
			settle()
			r.fake.Calls.Reset()
			time.Sleep(calm)
			r.expectSeen(t)
			if n := r.fake.Calls.Count("ListContainers"); (n > 0) != tt.ordinary {
				t.Errorf("%d ordinary lists, expected: %v", n, tt.ordinary)
			}
			if n := r.fake.Calls.Count("StreamContainers"); (n > 0) != tt.streams {
				t.Errorf("%d streamed lists, expected: %v", n, tt.streams)
			}
		}
	})
}

func TestStreamThatBreaksInAListIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, critest.WithStreamedLists())
		r.run(t, "a", "c")
		settle()
		r.fake.Calls.Inject(critest.Fault{Method: "StreamContainers", Err: status.Error(codes.Internal, "half a list")})
		r.fake.Events.BreakStreams(status.Error(codes.Internal, "broken"))
		time.Sleep(1500 * time.Millisecond) // it is opened again after a second, and the runtime listed then
		if err := r.Health(); err == nil || !strings.Contains(err.Error(), "StreamContainers: half a list") {
			t.Errorf("health: %v, want the failed list", err)
		}
		settle()
		if err := r.Health(); err != nil {
			t.Errorf("health after a list that succeeded: %v", err)
		}
		r.expectSeen(t)
	})
}

// A runtime that is replaced by one with events, or one without, is followed as it can be.
func TestEventsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, critest.WithoutEvents())
		r.run(t, "a", "c")
		replace := func(events critest.Offered) {
			r.fake.Down()
			r.fake.Events.SetOffered(events)
			r.must(t, r.fake.Serve())
			time.Sleep(calm) // a runtime without events is asked for them every five minutes
			synctest.Wait()
			r.fake.Calls.Reset()
		}
		relists := func(length time.Duration) int {
			r.fake.Calls.Reset()
			time.Sleep(length)
			synctest.Wait()
			return r.fake.Calls.Count("ListPodSandbox")
		}
		if n := relists(time.Minute); n < 55 {
			t.Errorf("%d relists in a minute without events", n)
		}
		if r.StreamHealth() == nil {
			t.Error("the stream of a runtime without events is healthy")
		}
		replace(true)
		if n := relists(time.Hour); n > 13 {
			t.Errorf("%d relists in an hour with events", n)
		}
		if err := r.StreamHealth(); err != nil {
			t.Errorf("with events: %v", err)
		}
		r.must(t, r.fake.Kill("c", 3))
		synctest.Wait()
		r.expectState(t, "a", "c", pod.StateExited)
		replace(false)
		if n := relists(time.Minute); n < 55 {
			t.Errorf("%d relists in a minute without events again", n)
		}
	})
}

// A runtime whose streams break at once is relisted every second, and its streams are tried again
// later.
func TestStreamThatKeepsBreaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "c")
		r.fake.Calls.Inject(critest.Fault{Method: "GetContainerEvents", Times: 5, Err: status.Error(codes.Internal, "no")})
		r.fake.Events.BreakStreams(status.Error(codes.Internal, "broken"))
		time.Sleep(20 * time.Second)
		r.fake.Events.Lose(1)
		r.must(t, r.fake.Kill("c", 3))
		time.Sleep(pollPeriod)
		synctest.Wait()
		r.expectState(t, "a", "c", pod.StateExited)
		if n := r.fake.Calls.Count("GetContainerEvents"); n > 8 {
			t.Errorf("%d streams were tried in 20 s", n)
		}
		if err := r.StreamHealth(); err == nil || !strings.Contains(err.Error(), "the event stream of the container runtime: ") {
			t.Errorf("while the stream keeps breaking: %v", err)
		}
		time.Sleep(3 * calm)
		r.fake.Calls.Reset()
		time.Sleep(time.Hour)
		if n := r.fake.Calls.Count("ListPodSandbox"); n > 13 {
			t.Errorf("%d relists in an hour after the stream was open again", n)
		}
		if err := r.StreamHealth(); err != nil {
			t.Errorf("after the stream was open again: %v", err)
		}
	})
}

// What hangs is reported with the call in which it does, for the pod that it holds up, and for all
// when the list does.
func TestStallsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.run(t, "a", "slow")
		r.run(t, "b", "quick")
		settle()
		r.fake.Calls.Inject(critest.Fault{Method: "ContainerStatus", Times: 1, Hang: true})
		r.must(t, r.fake.Kill("slow", 1))
		time.Sleep(11 * time.Second)
		r.must(t, r.fake.Kill("quick", 1))
		synctest.Wait()
		r.expectState(t, "b", "quick", pod.StateExited)
		if got := r.journal.Read("default", "web-a"); len(got) != 1 || !strings.Contains(got[0].Error, "does not answer ContainerStatus for this pod") {
			t.Errorf("journal of the pod that is held up: %+v", got)
		}
		if err := r.Health(); err != nil {
			t.Errorf("one pod makes the node unhealthy: %v", err)
		}
		time.Sleep(time.Minute) // the reading gives up; whoever the pod belongs to tries again
		if _, err := r.Observe(t.Context(), "a", r.BeginReading()); err != nil {
			t.Error(err)
		}
		r.expectState(t, "a", "slow", pod.StateExited)

		r.fake.Calls.Inject(critest.Fault{Method: "ListContainers", Times: 1, Hang: true, Match: func(req any) bool {
			return req.(*runtimeapi.ListContainersRequest).GetFilter().GetLabelSelector()[cri.PodUIDLabel] == ""
		}})
		r.fake.Events.BreakStreams(status.Error(codes.Internal, "broken"))
		time.Sleep(15 * time.Second)
		r.run(t, "c", "new")
		synctest.Wait()
		r.expectState(t, "c", "new", pod.StateRunning) // events are followed all the same
		err := r.Health()
		messagestest.SawError(err)
		if err == nil || !strings.Contains(err.Error(), "has not answered ListContainers for 1") {
			t.Errorf("health while the list hangs: %v", err)
		}
		time.Sleep(3 * time.Minute)
		if err := r.Health(); err != nil {
			t.Errorf("health afterwards: %v", err)
		}
	})
}
