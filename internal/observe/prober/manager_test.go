package prober

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/action"
)

// answers is what the containers answer, and what they were asked. A probe is named by its command.
type answers struct {
	began time.Time

	mu    sync.Mutex
	as    map[string]func(ctx context.Context) action.Result // guarded by mu; who is not here succeeds
	calls []string                                           // guarded by mu; "name@time" since began
}

func (a *answers) Probe(ctx context.Context, t action.Target, p *v1.Probe) action.Result {
	name := p.Exec.Command[0]
	a.mu.Lock()
	a.calls = append(a.calls, fmt.Sprintf("%s %s@%s", t.ID, name, time.Since(a.began)))
	do := a.as[name]
	a.mu.Unlock()
	if do == nil {
		return action.Result{Outcome: action.Success}
	}
	return do(ctx)
}

func (a *answers) set(name string, do func(ctx context.Context) action.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.as[name] = do
}

// take returns the calls since the last take.
func (a *answers) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.calls
	a.calls = nil
	return out
}

func (a *answers) fails(name string)    { a.set(name, result(action.Failure, "no")) }
func (a *answers) succeeds(name string) { a.set(name, nil) }

func result(o action.Outcome, output string) func(context.Context) action.Result {
	return func(context.Context) action.Result { return action.Result{Outcome: o, Output: output} }
}

// hangs answers when the attempt is cancelled, or after d.
func hangs(d time.Duration) func(context.Context) action.Result {
	return func(ctx context.Context) action.Result {
		select {
		case <-ctx.Done():
			return action.Result{Output: "cancelled"}
		case <-time.After(d):
			return action.Result{Outcome: action.Failure, Output: "timed out"}
		}
	}
}

// node is a Manager that runs in a bubble.
type node struct {
	*Manager
	t *testing.T
	*answers
	events []string
	stop   func()
}

func (n *node) Event(p *v1.Pod, container, eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	n.answers.mu.Lock()
	defer n.answers.mu.Unlock()
	n.events = append(n.events, fmt.Sprintf("%s/%s %s %s %s", p.Name, container, eventtype, reason, message))
}

// newNode starts a Manager; path is that of its file. The bubble's clock begins at its start.
func newNode(t *testing.T, path string) *node {
	n := &node{t: t, answers: &answers{began: time.Now(), as: map[string]func(context.Context) action.Result{}}}
	log := slog.New(slog.DiscardHandler)
	n.Manager = New(Config{Actions: n.answers, Recorder: n, Journal: journal.New(log), Log: log, Path: path, HostIPs: func() []string { return []string{"10.0.0.1"} }})
	n.Load()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.Run(ctx); err != context.Canceled {
			t.Errorf("Run ended with %v", err)
		}
	}()
	n.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(n.stop)
	return n
}

// after lets virtual time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (n *node) wantCalls(want ...string) {
	n.t.Helper()
	synctest.Wait()
	if d := cmp.Diff(want, n.take()); d != "" {
		n.t.Errorf("attempts (-want +got):\n%s", d)
	}
}

// wantVerdicts checks the verdicts on an incarnation in the form "liveness ready startup"; without
// a readiness probe it has not passed one.
func (n *node) wantVerdicts(id pod.ContainerID, want string) {
	n.t.Helper()
	v := n.Verdicts("u")
	if got := fmt.Sprint(v.Liveness[id], " ", v.Readiness[id] == pod.ProbeSuccess, " ", v.Startup[id]); got != want {
		n.t.Errorf("liveness, ready and startup of %s: %s, want %s", id, got, want)
	}
}

// wantChanged checks whether the loop is told of the pod.
func (n *node) wantChanged(want bool) {
	n.t.Helper()
	if got := n.Results().Take(); (len(got) == 1) != want {
		n.t.Errorf("pods with changed verdicts: %v, want one: %t", got, want)
	}
}

// said returns the journal without what repeats it.
func (n *node) said() (out []string) {
	for _, e := range n.Journal.Read("default", "web") {
		out = append(out, strings.TrimRight(fmt.Sprintf("%s: %s; %s; %s", e.Container, e.Decision, e.Why, e.Error), "; "))
	}
	return out
}

func probeOf(name string, change ...func(*v1.Probe)) *v1.Probe {
	p := &v1.Probe{
		ProbeHandler:   v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{name}}},
		TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func delay(seconds int32) func(*v1.Probe) {
	return func(p *v1.Probe) { p.InitialDelaySeconds = seconds }
}

func onFailures(n int32) func(*v1.Probe) {
	return func(p *v1.Probe) { p.FailureThreshold = n }
}

// webPod has one container, c, with the probes given; nil for those that it has not.
func webPod(liveness, readiness, startup *v1.Probe) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Namespace, p.Name = "u", "default", "web"
	p.Spec.Containers = []v1.Container{{Name: "c", LivenessProbe: liveness, ReadinessProbe: readiness, StartupProbe: startup}}
	return p
}

func incarnation(id, name string, state pod.ContainerState, startedAt time.Time) pod.ContainerStatus {
	return pod.ContainerStatus{ID: pod.ContainerID(id), Name: name, State: state, StartedAt: startedAt}
}

// shows is an observation of the containers.
func shows(containers ...pod.ContainerStatus) *pod.Status {
	return &pod.Status{UID: "u", IPs: []string{"10.1.0.2"}, Containers: containers}
}

// runs is an observation of container c, running as this incarnation since now.
func runs(id string) *pod.Status { return shows(incarnation(id, "c", pod.StateRunning, time.Now())) }

func bubble(t *testing.T, name string, f func(t *testing.T, n *node)) {
	t.Run(name, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "probes.json")
		synctest.Test(t, func(t *testing.T) { f(t, newNode(t, path)) })
	})
}

func TestWhenAttemptsAreMade(t *testing.T) {
	bubble(t, "at once, and every period", func(t *testing.T, n *node) {
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		after(25 * time.Second)
		n.wantCalls("a r@0s", "a r@10s", "a r@20s")
	})
	bubble(t, "the initial delay counts from the container's start", func(t *testing.T, n *node) {
		after(time.Minute)
		n.Sync(webPod(probeOf("l", delay(30)), probeOf("r", delay(5)), nil), shows(incarnation("a", "c", pod.StateRunning, time.Now().Add(-3*time.Second))))
		after(30 * time.Second)
		n.wantCalls("a r@1m2s", "a r@1m12s", "a r@1m22s", "a l@1m27s")
	})
	bubble(t, "a start in the future is now", func(t *testing.T, n *node) {
		n.Sync(webPod(nil, probeOf("r", delay(5)), nil), shows(incarnation("a", "c", pod.StateRunning, time.Now().Add(time.Hour))))
		after(6 * time.Second)
		n.wantCalls("a r@5s")
	})
	bubble(t, "not twice in one moment, whatever is observed", func(t *testing.T, n *node) {
		n.fails("r")
		p := webPod(nil, probeOf("r"), nil)
		n.Sync(p, runs("a"))
		synctest.Wait()
		n.Sync(p, runs("a"))
		synctest.Wait()
		n.wantCalls("a r@0s")
		after(time.Second) // a pod that is not ready is probed when it is observed anew
		n.Sync(p, runs("a"))
		synctest.Wait()
		n.wantCalls("a r@1s")
	})
	bubble(t, "a slow attempt does not move the next one, a very slow one is followed at once", func(t *testing.T, n *node) {
		n.set("r", hangs(4*time.Second))
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		after(11 * time.Second)
		n.wantCalls("a r@0s", "a r@10s")
		n.set("r", hangs(15*time.Second))
		after(25 * time.Second)
		n.wantCalls("a r@20s", "a r@35s")
	})
	bubble(t, "not before the container runs", func(t *testing.T, n *node) {
		p := webPod(nil, probeOf("r"), nil)
		n.Sync(p, shows())
		n.Sync(p, shows(incarnation("a", "c", pod.StateCreated, time.Time{})))
		after(time.Minute)
		n.wantCalls()
		n.Sync(p, runs("a"))
		n.wantCalls("a r@1m0s")
	})
	bubble(t, "not after it has ended", func(t *testing.T, n *node) {
		p := webPod(nil, probeOf("r"), nil)
		n.Sync(p, runs("a"))
		n.wantCalls("a r@0s")
		n.wantVerdicts("a", "unknown true unknown")
		n.Sync(p, shows(incarnation("a", "c", pod.StateExited, time.Now())))
		after(time.Minute)
		n.wantCalls()
		n.wantVerdicts("a", "unknown false unknown")
	})
	bubble(t, "not of init containers and ephemeral ones, but of sidecars", func(t *testing.T, n *node) {
		p := &v1.Pod{}
		p.UID = "u"
		p.Spec.InitContainers = []v1.Container{
			{Name: "init", ReadinessProbe: probeOf("i")},
			{Name: "sidecar", ReadinessProbe: probeOf("s"), RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
		}
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e", ReadinessProbe: probeOf("e")}}}
		now := time.Now()
		n.Sync(p, shows(incarnation("1", "init", pod.StateRunning, now), incarnation("2", "sidecar", pod.StateRunning, now), incarnation("3", "e", pod.StateRunning, now)))
		n.wantCalls("2 s@0s")
	})
	bubble(t, "probes without numbers have the API's defaults", func(t *testing.T, n *node) {
		n.fails("l")
		n.Sync(webPod(&v1.Probe{ProbeHandler: probeOf("l").ProbeHandler}, nil, nil), runs("a"))
		after(time.Minute)
		n.wantCalls("a l@0s", "a l@10s", "a l@20s") // and then it is failed
	})
}

func TestReadinessIsAskedAgainByAPass(t *testing.T) {
	bubble(t, "and its period begins anew", func(t *testing.T, n *node) {
		n.fails("r")
		p, o := webPod(probeOf("l"), probeOf("r"), nil), runs("a")
		n.Sync(p, o)
		after(4 * time.Second)
		n.take()
		n.Sync(p, o)
		n.wantCalls("a r@4s")
		n.succeeds("r")
		after(11 * time.Second)
		n.wantCalls("a l@10s", "a r@14s")
		n.Sync(p, o) // it is ready: nothing is asked
		n.wantCalls()
	})
	bubble(t, "but not before its time", func(t *testing.T, n *node) {
		p, o := webPod(nil, probeOf("r", delay(7)), probeOf("s", delay(9))), runs("a")
		n.Sync(p, o)
		after(8 * time.Second)
		n.Sync(p, o)
		n.wantCalls() // the container has not started
		after(2 * time.Second)
		n.wantCalls("a s@9s", "a r@9s")
	})
	bubble(t, "nor twice at a time", func(t *testing.T, n *node) {
		n.set("r", hangs(3*time.Second))
		p, o := webPod(nil, probeOf("r"), nil), runs("a")
		n.Sync(p, o)
		after(time.Second)
		n.Sync(p, o)
		after(4 * time.Second)
		n.wantCalls("a r@0s")
	})
}

func TestVerdicts(t *testing.T) {
	bubble(t, "an incarnation begins alive, not ready, and not known to have started", func(t *testing.T, n *node) {
		n.Sync(webPod(probeOf("l", delay(60)), probeOf("r", delay(60)), probeOf("s", delay(60))), runs("a"))
		n.wantVerdicts("a", "success false unknown")
		n.wantChanged(false)
	})
	bubble(t, "what has no such probe, or is not known, has no verdict", func(t *testing.T, n *node) {
		n.Sync(webPod(probeOf("l"), nil, nil), runs("a"))
		want := pod.ProbeVerdicts{Liveness: map[pod.ContainerID]pod.ProbeVerdict{"a": pod.ProbeSuccess}}
		if d := cmp.Diff(want, n.Verdicts("u")); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if d := cmp.Diff(pod.ProbeVerdicts{}, n.Verdicts("nobody")); d != "" {
			t.Errorf("of a pod that is not known (-want +got):\n%s", d)
		}
	})
	bubble(t, "the first success is told at once, a failure when there are enough", func(t *testing.T, n *node) {
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		synctest.Wait()
		n.wantVerdicts("a", "unknown true unknown")
		n.wantChanged(true)
		n.fails("r")
		after(20 * time.Second)
		n.wantVerdicts("a", "unknown true unknown")
		n.wantChanged(false)
		after(10 * time.Second)
		n.wantVerdicts("a", "unknown false unknown")
		n.wantChanged(true)
		after(10 * time.Second)
		n.wantChanged(false)
		want := []string{
			"c: readiness probe: success; successes in a row: 1, successThreshold: 1",
			"c: readiness probe: failure; failures in a row: 3, failureThreshold: 3; no",
		}
		if d := cmp.Diff(want, n.said()); d != "" {
			t.Errorf("journal (-want +got):\n%s", d)
		}
	})
	bubble(t, "one that was never ready is explained once, and nobody is woken", func(t *testing.T, n *node) {
		n.fails("r")
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		after(time.Hour)
		n.wantChanged(false)
		want := []string{"c: readiness probe: failure; failures in a row: 3, failureThreshold: 3; no"}
		if d := cmp.Diff(want, n.said()); d != "" {
			t.Errorf("journal (-want +got):\n%s", d)
		}
	})
	bubble(t, "a container that does not live is left alone until its next incarnation", func(t *testing.T, n *node) {
		n.fails("l")
		p := webPod(probeOf("l"), nil, nil)
		n.Sync(p, runs("a"))
		after(time.Hour)
		n.wantCalls("a l@0s", "a l@10s", "a l@20s")
		n.wantVerdicts("a", "failure false unknown")
		n.wantChanged(true)
		handed := n.Verdicts("u")
		n.Sync(p, shows(incarnation("a", "c", pod.StateExited, time.Now())))
		n.wantVerdicts("a", "failure false unknown")
		n.Sync(p, runs("b"))
		n.wantCalls("b l@1h0m0s")
		n.wantVerdicts("b", "success false unknown")
		if d := cmp.Diff(map[pod.ContainerID]pod.ProbeVerdict{"a": pod.ProbeFailure}, handed.Liveness); d != "" {
			t.Errorf("verdicts that were handed out have changed:\n%s", d)
		}
		if d := cmp.Diff(map[pod.ContainerID]pod.ProbeVerdict{"b": pod.ProbeSuccess}, n.Verdicts("u").Liveness); d != "" {
			t.Errorf("verdicts (-want +got):\n%s", d)
		}
	})
	bubble(t, "an attempt on the incarnation before counts for nothing", func(t *testing.T, n *node) {
		var ended bool
		n.set("l", func(ctx context.Context) action.Result {
			<-ctx.Done()
			ended = true
			return action.Result{Outcome: action.Failure, Output: "too late"}
		})
		p := webPod(probeOf("l", onFailures(1)), nil, nil)
		n.Sync(p, runs("a"))
		after(time.Second)
		n.succeeds("l")
		n.Sync(p, runs("b"))
		synctest.Wait()
		n.wantVerdicts("b", "success false unknown")
		if !ended || len(n.events) > 0 {
			t.Errorf("ended: %t, events: %v; want the attempt cancelled and nothing said", ended, n.events)
		}
	})
}

func TestStartupProbe(t *testing.T) {
	bubble(t, "the others wait for it, and it is asked no more", func(t *testing.T, n *node) {
		n.fails("s")
		n.Sync(webPod(probeOf("l"), probeOf("r"), probeOf("s", onFailures(30))), runs("a"))
		after(25 * time.Second)
		n.wantCalls("a s@0s", "a s@10s", "a s@20s")
		n.wantVerdicts("a", "success false unknown")
		n.succeeds("s")
		after(16 * time.Second)
		got := n.take()
		slices.Sort(got[1:3])
		slices.Sort(got[3:])
		if d := cmp.Diff([]string{"a s@30s", "a l@30s", "a r@30s", "a l@40s", "a r@40s"}, got); d != "" {
			t.Errorf("attempts (-want +got):\n%s", d)
		}
		n.wantVerdicts("a", "success true success")
		n.wantChanged(true)
	})
	bubble(t, "its failure is final", func(t *testing.T, n *node) {
		n.fails("s")
		n.Sync(webPod(probeOf("l"), nil, probeOf("s")), runs("a"))
		after(20 * time.Second)
		n.wantVerdicts("a", "success false failure")
		n.wantChanged(true)
		n.succeeds("s")
		after(time.Hour)
		n.wantCalls("a s@0s", "a s@10s", "a s@20s")
		n.wantVerdicts("a", "success false failure")
	})
}

func TestAttemptsThatCannotBeMade(t *testing.T) {
	bubble(t, "are made three times at once and count for nothing", func(t *testing.T, n *node) {
		n.fails("l")
		n.Sync(webPod(probeOf("l"), nil, nil), runs("a"))
		after(11 * time.Second)
		n.wantCalls("a l@0s", "a l@10s")
		n.set("l", result(action.Unknown, "the runtime is down"))
		after(10 * time.Second)
		n.wantCalls("a l@20s", "a l@20s", "a l@20s")
		n.wantVerdicts("a", "success false unknown")
		n.fails("l")
		after(10 * time.Second)
		n.wantVerdicts("a", "failure false unknown") // the third failure, for the one between was none
	})
	bubble(t, "are enough if one succeeds", func(t *testing.T, n *node) {
		tried := 0
		n.set("r", func(context.Context) action.Result {
			if tried++; tried < 3 {
				return action.Result{Output: "again"}
			}
			return action.Result{Outcome: action.Success}
		})
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		synctest.Wait()
		n.wantVerdicts("a", "unknown true unknown")
		if len(n.events) > 0 {
			t.Errorf("events: %v", n.events)
		}
	})
}

func TestEvents(t *testing.T) {
	bubble(t, "at each attempt that fails", func(t *testing.T, n *node) {
		n.set("l", result(action.Failure, "exit code 3"))
		n.set("r", result(action.Warning, "it redirects"))
		n.set("s", result(action.Success, "fine"))
		n.Sync(webPod(probeOf("l"), probeOf("r", delay(1)), probeOf("s")), runs("a"))
		after(11 * time.Second)
		n.set("r", result(action.Unknown, "no such port"))
		n.set("l", nil)
		after(10 * time.Second)
		want := []string{
			"web/c Warning Unhealthy Liveness probe failed: exit code 3",
			"web/c Warning ProbeWarning Readiness probe warning: it redirects",
			"web/c Warning Unhealthy Liveness probe failed: exit code 3",
			"web/c Warning ProbeWarning Readiness probe warning: it redirects",
			"web/c Warning Unhealthy Readiness probe errored and resulted in unknown state: no such port",
		}
		if d := cmp.Diff(want, n.events); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
		n.wantVerdicts("a", "success true success") // a warning is a success
	})
	bubble(t, "of a startup probe", func(t *testing.T, n *node) {
		n.fails("s")
		n.Sync(webPod(nil, nil, probeOf("s")), runs("a"))
		synctest.Wait()
		if d := cmp.Diff([]string{"web/c Warning Unhealthy Startup probe failed: no"}, n.events); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

// Each kind of probe tells of each outcome in the same words.
func TestEventsOfEachKind(t *testing.T) {
	for kind, title := range map[string]string{"l": "Liveness", "r": "Readiness", "s": "Startup"} {
		for outcome, want := range map[action.Outcome]string{
			action.Failure: "web/c Warning Unhealthy " + title + " probe failed: why",
			action.Warning: "web/c Warning ProbeWarning " + title + " probe warning: why",
			action.Unknown: "web/c Warning Unhealthy " + title + " probe errored and resulted in unknown state: why",
		} {
			bubble(t, kind+" "+outcome.String(), func(t *testing.T, n *node) {
				n.set(kind, result(outcome, "why"))
				probes := map[string]*v1.Probe{kind: probeOf(kind)}
				n.Sync(webPod(probes["l"], probes["r"], probes["s"]), runs("a"))
				synctest.Wait()
				if d := cmp.Diff([]string{want}, n.events); d != "" {
					t.Errorf("events (-want +got):\n%s", d)
				}
			})
		}
	}
}

func TestTermination(t *testing.T) {
	now := func(state pod.ContainerState) *pod.Status {
		return shows(incarnation("a", "c", state, time.Now()), incarnation("b", "sidecar", state, time.Now()))
	}
	bubble(t, "ends liveness and startup of regular containers", func(t *testing.T, n *node) {
		n.set("l", hangs(time.Minute))
		p := webPod(probeOf("l"), probeOf("r"), nil)
		p.Spec.InitContainers = []v1.Container{{Name: "sidecar", LivenessProbe: probeOf("sl"), RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}
		n.Sync(p, now(pod.StateRunning))
		after(5 * time.Second)
		n.take()
		n.Terminating("u")
		n.Terminating("u")
		n.fails("r")
		after(26 * time.Second)
		got := n.take()
		slices.Sort(got)
		if d := cmp.Diff([]string{"a r@10s", "a r@20s", "a r@30s", "b sl@10s", "b sl@20s", "b sl@30s"}, got); d != "" {
			t.Errorf("attempts (-want +got):\n%s", d)
		}
		n.wantVerdicts("a", "success false unknown")
		n.Sync(p, now(pod.StateExited))
		after(time.Minute)
		n.wantCalls()
	})
	bubble(t, "nothing waits for a startup probe that has ended", func(t *testing.T, n *node) {
		n.fails("s")
		p := webPod(probeOf("l"), probeOf("r"), probeOf("s"))
		n.Sync(p, runs("a"))
		after(5 * time.Second)
		n.wantCalls("a s@0s")
		n.Terminating("u")
		n.wantCalls("a r@5s")
		n.wantVerdicts("a", "success true success")
		n.Sync(p, runs("b")) // came to run in the last moment
		n.wantCalls("b r@5s")
		n.wantVerdicts("b", "success true success")
	})
	bubble(t, "a pod that is removed is forgotten", func(t *testing.T, n *node) {
		n.set("l", hangs(time.Hour))
		n.Sync(webPod(probeOf("l"), probeOf("r"), nil), runs("a"))
		synctest.Wait()
		n.take()
		n.Results().Take()
		n.Remove("u")
		n.Remove("u")
		n.Terminating("u")
		after(time.Hour)
		n.wantCalls()
		n.wantChanged(false)
		if v := n.Verdicts("u"); len(n.events) > 0 || v.Readiness != nil || len(n.pods) > 0 || n.schedule.attempts > 0 {
			t.Errorf("events %v, verdicts %v, pods %v, attempts %d; want nothing", n.events, v, n.pods, n.schedule.attempts)
		}
	})
}

func TestTarget(t *testing.T) {
	var got []action.Target
	aims := func(n *node) {
		n.Actions = targets(func(t action.Target) { got = append(got, t) })
	}
	bubble(t, "addresses", func(t *testing.T, n *node) {
		aims(n)
		p := webPod(nil, probeOf("r"), nil)
		n.Sync(p, runs("a"))
		after(time.Second)
		n.Sync(p, &pod.Status{Containers: runs("a").Containers}) // the sandbox has gone: the address is that which it had
		after(10 * time.Second)
		n.Remove("u")
		host := webPod(nil, probeOf("r"), nil)
		host.Spec.HostNetwork = true
		n.Sync(host, &pod.Status{Containers: runs("b").Containers})
		synctest.Wait()
		want := []action.Target{
			{ID: "a", Container: &p.Spec.Containers[0], PodIP: "10.1.0.2"},
			{ID: "a", Container: &p.Spec.Containers[0], PodIP: "10.1.0.2"},
			{ID: "b", Container: &host.Spec.Containers[0], PodIP: "10.0.0.1"},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("targets (-want +got):\n%s", d)
		}
	})
}

// targets notes what attempts are aimed at.
type targets func(action.Target)

func (f targets) Probe(_ context.Context, t action.Target, _ *v1.Probe) action.Result {
	f(t)
	return action.Result{Outcome: action.Success}
}
