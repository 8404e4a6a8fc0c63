package prober

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/action"
)

// podOf has containers, all running now, each with the probe that make returns.
func podOf(uid string, containers int, make func(i int) *v1.Probe) (*v1.Pod, *pod.Status) {
	p, o := &v1.Pod{}, &pod.Status{UID: pod.UID(uid)}
	p.UID, p.Namespace, p.Name = pod.UID(uid), "default", uid
	for i := range containers {
		name := fmt.Sprintf("c%d", i)
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, LivenessProbe: make(i)})
		o.Containers = append(o.Containers, incarnation(uid+name, name, pod.StateRunning, time.Now()))
	}
	return p, o
}

func (n *node) rounds() int {
	synctest.Wait()
	n.Manager.mu.Lock()
	defer n.Manager.mu.Unlock()
	return n.schedule.rounds
}

func TestAtRestNothingTicks(t *testing.T) {
	bubble(t, "", func(t *testing.T, n *node) {
		before := n.rounds()
		after(24 * time.Hour)
		if got := n.rounds(); got != before {
			t.Errorf("the loop looked %d times without a probe", got-before)
		}
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		after(time.Minute)
		n.Remove("u")
		before = n.rounds()
		after(24 * time.Hour)
		if got := n.rounds(); got > before+1 {
			t.Errorf("the loop looked %d times after the last probe had gone", got-before)
		}
	})
}

// counter counts attempts, which succeed.
type counter struct{ atomic.Int64 }

func (c *counter) Probe(context.Context, action.Target, *v1.Probe) action.Result {
	c.Add(1)
	return action.Result{Outcome: action.Success}
}

func TestFiveThousandProbes(t *testing.T) {
	bubble(t, "for an hour", func(t *testing.T, n *node) {
		const pods, perPod = 1000, 5
		synctest.Wait()
		idle := runtime.NumGoroutine()
		var made counter
		n.Actions = &made
		for i := range pods {
			p, o := podOf(fmt.Sprintf("p%d", i), perPod, func(int) *v1.Probe {
				l := probeOf("l")
				l.PeriodSeconds = 60
				return l
			})
			n.Sync(p, o)
			after(10 * time.Millisecond) // pods do not start all at once
		}
		began := made.Load()
		before := n.rounds()
		for range 60 {
			after(time.Minute)
			if got := runtime.NumGoroutine(); got > idle+3 { // the Go runtime may have begun some of its own
				t.Fatalf("%d goroutines at rest, %d before the probes", got, idle)
			}
		}
		rounds := n.rounds() - before
		attempts := made.Load() - began
		if want := int64(pods * perPod * 60); attempts < want || attempts > want+pods*perPod {
			t.Errorf("%d attempts, want %d", attempts, want)
		}
		// All of a pod are due in one moment: one firing for five probes, and none for their ends.
		if most := pods * 60 * 11 / 10; rounds > most {
			t.Errorf("the loop looked %d times for %d attempts, want at most %d", rounds, attempts, most)
		}
		t.Logf("%d attempts, %d rounds of the loop", attempts, rounds)
	})
}

func TestAMomentInWhichAllAreDueIsNoFlood(t *testing.T) {
	bubble(t, "", func(t *testing.T, n *node) {
		var mu sync.Mutex
		now, most, made := 0, 0, 0
		n.set("l", func(context.Context) action.Result {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			now--
			made++
			mu.Unlock()
			return action.Result{Outcome: action.Success}
		})
		for i := range 1000 {
			p, o := podOf(fmt.Sprintf("p%d", i), 5, func(int) *v1.Probe { return probeOf("l") })
			n.Sync(p, o)
		}
		after(5 * time.Second)
		if most > maxAttempts || made != 5000 {
			t.Errorf("%d attempts, at most %d at a time; want 5000, and %d", made, most, maxAttempts)
		}
	})
}

func TestHangingProbesDoNotStarveOthers(t *testing.T) {
	bubble(t, "of other pods", func(t *testing.T, n *node) {
		n.set("hangs", hangs(time.Hour))
		for i := range 500 {
			p, o := podOf(fmt.Sprintf("bad%d", i), 10, func(int) *v1.Probe { return probeOf("hangs") })
			n.Sync(p, o)
		}
		after(time.Second)
		if got, want := len(n.take()), 500*maxAttemptsPerPod; got != want {
			t.Errorf("%d attempts hang, want %d: the pool grows, but no pod has more than its places", got, want)
		}
		p, o := podOf("good", 1, func(int) *v1.Probe { return probeOf("good") })
		n.Sync(p, o)
		after(maxQueued)
		if got := n.take(); len(got) != 1 {
			t.Errorf("after %v: %v, want the good probe's attempt", maxQueued, got)
		}
		after(time.Minute)
		if got := n.take(); len(got) != 5 { // each waits for patience
			t.Errorf("in a minute: %v, want five", got)
		}
	})
	bubble(t, "of their pod for long, and that is told", func(t *testing.T, n *node) {
		n.set("hangs", hangs(3*time.Second))
		p, o := podOf("web", 2*maxAttemptsPerPod, func(i int) *v1.Probe {
			if i < 2*maxAttemptsPerPod-1 {
				return probeOf("hangs", onFailures(100))
			}
			return probeOf("good")
		})
		o.UID = "web"
		n.Sync(p, o)
		after(24 * time.Second)
		good := 0
		for _, c := range n.take() {
			if strings.Contains(c, "good") {
				good++
			}
		}
		if good != 3 {
			t.Errorf("%d attempts of the good probe, want 3: after the first that hung, and then in time", good)
		}
		var late []string
		for _, e := range n.Journal.Read("default", "web") {
			if strings.Contains(e.Decision, "late") && len(late) == 0 || strings.Contains(e.Decision, "in time") {
				late = append(late, fmt.Sprintf("%s %s %s", e.Decision, e.Took, e.Why))
			}
		}
		want := []string{"liveness probe runs late 3s its pod had 8 attempts under way, as many as it may have", "liveness probe is in time again 0s "}
		if d := cmp.Diff(want, late[:min(len(late), 2)]); d != "" {
			t.Errorf("journal (-want +got):\n%s", d)
		}
	})
}

func TestAPlaceIsNotLostWithTheProbeThatWasToHaveIt(t *testing.T) {
	var s schedule
	now := time.Now()
	p, _ := podOf("web", 2*maxAttemptsPerPod+1, func(int) *v1.Probe { return probeOf("l") })
	pp := newPodProbes(p)
	pp.pod = p
	for _, c := range pp.containers {
		s.set(c.probes[liveness], now)
	}
	under := s.takeDue(t.Context(), now)
	if len(under) != maxAttemptsPerPod || pp.waiting.Len() != maxAttemptsPerPod+1 {
		t.Fatalf("%d attempts, %d wait for the pod's places", len(under), pp.waiting.Len())
	}
	for _, a := range under {
		s.finish(a)
		a.probe.current = nil
	}
	for range maxAttemptsPerPod { // in the moment in which the others have left places to them, they are gone
		s.remove(s.waiting.Front().Value.(*probe))
	}
	if got := s.takeDue(t.Context(), now); len(got) != 1 || s.waiting.Len()+pp.waiting.Len() > 0 {
		t.Errorf("%d attempts, %d and %d wait; want the last probe to have its turn", len(got), s.waiting.Len(), pp.waiting.Len())
	}
}

// reference is the rule of thresholds in other words: a verdict is what the newest results, as many
// as are needed, agree on.
func reference(verdict pod.ProbeVerdict, results []pod.ProbeVerdict, th thresholds) pod.ProbeVerdict {
	for _, v := range []pod.ProbeVerdict{pod.ProbeSuccess, pod.ProbeFailure} {
		if n := th.needed(v); len(results) >= n && !slices.ContainsFunc(results[len(results)-n:], func(r pod.ProbeVerdict) bool { return r != v }) {
			return v
		}
	}
	return verdict
}

func TestThresholdsAgainstReference(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		k := kind(rnd.IntN(int(kinds)))
		spec := probeOf("x", onFailures(1+rnd.Int32N(4)))
		if k == readiness {
			spec.SuccessThreshold = 1 + rnd.Int32N(4)
		}
		likely := rnd.Float64()
		bubble(t, fmt.Sprintf("seed %d, %s", seed, k), func(t *testing.T, n *node) {
			var outcome action.Outcome
			var probes [kinds]*v1.Probe
			probes[k] = spec
			p := webPod(probes[liveness], probes[readiness], probes[startup])
			var (
				results []pod.ProbeVerdict
				want    = k.initial()
				number  = 0
			)
			begin := func() {
				number++
				results, want = nil, k.initial()
				n.Sync(p, shows(incarnation(fmt.Sprint(number), "c", pod.StateRunning, time.Now())))
			}
			next := func() {
				switch f := rnd.Float64(); {
				case f < 0.1:
					outcome = action.Unknown
				case f < 0.1+0.8*likely:
					outcome = action.Success
				default:
					outcome = action.Failure
				}
				n.set("x", result(outcome, ""))
			}
			next()
			begin()
			for step := range 60 {
				synctest.Wait()
				final := k == liveness && want == pod.ProbeFailure || k == startup && want != pod.ProbeUnknown
				if !final && outcome != action.Unknown {
					results = append(results, map[action.Outcome]pod.ProbeVerdict{action.Success: pod.ProbeSuccess, action.Failure: pod.ProbeFailure}[outcome])
					before := want
					want = reference(want, results, thresholdsOf(spec))
					n.wantChanged(want != before)
				} else {
					n.wantChanged(false)
				}
				n.Manager.mu.Lock()
				got := n.pods["u"].containers[0].probes[k].verdict
				n.Manager.mu.Unlock()
				if got != want {
					t.Fatalf("step %d, %v: %s, want %s", step, results, got, want)
				}
				next()
				if rnd.IntN(12) == 0 {
					begin()
				} else {
					after(10 * time.Second)
				}
			}
		})
	}
}

// However inputs and attempts meet, a probe that is to run is in exactly one place, and one that is
// not is nowhere.
func TestRandomInputs(t *testing.T) {
	for seed := range uint64(10) {
		bubble(t, fmt.Sprintf("seed %d", seed), func(t *testing.T, n *node) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			var mu sync.Mutex
			n.set("x", func(ctx context.Context) action.Result {
				mu.Lock()
				d, o := time.Duration(rnd.IntN(4000))*time.Millisecond, action.Outcome(rnd.IntN(4))
				mu.Unlock()
				select {
				case <-time.After(d):
					return action.Result{Outcome: o}
				case <-ctx.Done():
					return action.Result{}
				}
			})
			intn := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rnd.IntN(n)
			}
			step := func() {
				uid := pod.UID(fmt.Sprint("u", intn(20)))
				switch intn(10) {
				case 0:
					n.Remove(uid)
				case 1:
					n.Terminating(uid)
				default:
					p, o := &v1.Pod{}, &pod.Status{UID: uid}
					p.UID, p.Name = uid, string(uid)
					for i := range 4 {
						name := fmt.Sprint("c", i)
						p.Spec.Containers = append(p.Spec.Containers, v1.Container{
							Name: name, LivenessProbe: probeOf("x"), ReadinessProbe: probeOf("x", delay(1)), StartupProbe: probeOf("x"),
						})
						o.Containers = append(o.Containers, incarnation(fmt.Sprint(uid, name, intn(2)), name, pod.ContainerState(1+intn(3)), time.Now()))
					}
					n.Sync(p, o)
				}
			}
			for range 300 {
				var actors sync.WaitGroup
				for range 3 {
					actors.Go(step)
				}
				actors.Wait()
				after(time.Duration(intn(2000)) * time.Millisecond)
				n.checkPlaces(t)
			}
			for i := range 20 {
				n.Remove(pod.UID(fmt.Sprint("u", i)))
			}
			synctest.Wait()
			n.checkPlaces(t)
			if s := &n.schedule; len(s.deadlines) > 0 || s.waiting.Len() > 0 || s.attempts > 0 || len(n.pods) > 0 {
				t.Errorf("left: %d deadlines, %d waiting, %d attempts, %d pods", len(s.deadlines), s.waiting.Len(), s.attempts, len(n.pods))
			}
		})
	}
}

func (n *node) checkPlaces(t *testing.T) {
	t.Helper()
	n.Manager.mu.Lock()
	defer n.Manager.mu.Unlock()
	total := 0
	for uid, pp := range n.pods {
		total += pp.attempts
		if pp.waiting.Len() > 0 && pp.attempts == 0 && n.schedule.waiting.Len() == 0 {
			t.Errorf("%d probes of pod %s wait for nothing", pp.waiting.Len(), uid)
		}
		if pp.attempts > maxAttemptsPerPod {
			t.Errorf("pod %s has %d attempts", uid, pp.attempts)
		}
		for _, c := range pp.containers {
			for k, p := range c.probes {
				in := 0
				for _, is := range []bool{p.index != notInHeap, p.queue != nil, p.current != nil} {
					if is {
						in++
					}
				}
				if want := map[bool]int{true: 1}[p.isActive()]; in != want {
					t.Errorf("%s of %s is in %d places, want %d", kind(k), c.id, in, want)
				}
				if p.index != notInHeap && n.schedule.deadlines[p.index] != p {
					t.Errorf("%s of %s is elsewhere in the heap", kind(k), c.id)
				}
			}
		}
	}
	if n.schedule.attempts != total {
		t.Errorf("%d attempts, %d in pods", n.schedule.attempts, total)
	}
}
