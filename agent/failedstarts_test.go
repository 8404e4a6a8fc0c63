package agent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/runtime/cri/critest"
)

// errWithID is the error of a call that takes a second, and of which the runtime writes a new ID
// into each message.
func errWithID() error {
	time.Sleep(time.Second)
	id := fmt.Sprintf("%016x%016x%016x%016x", rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64())
	return status.Errorf(codes.Unknown, "failed to generate container %q spec: no command specified", id)
}

// A start that fails is tried again after its back-off, whatever the runtime says: neither a new
// message of each try nor the agent's own write of it leads to another try.
func TestFailedStartsWaitForTheirBackOff(t *testing.T) {
	const quiet, window = 20 * time.Minute, 10 * time.Minute
	// Tries come 10 to 15 s apart, those of images and of containers that were created each
	// 5 minutes by then.
	const each10s, each5m = int(window / (10 * time.Second)), int(window / (5 * time.Minute))
	for _, tc := range []struct {
		method         string
		tries          int
		writes, passes int // of the pod's status, and of its worker, at most
	}{
		{method: "RunPodSandbox", tries: each10s, writes: 0, passes: each10s},
		{method: "CreateContainer", tries: each10s, writes: 0, passes: each10s},
		{method: "ImageStatus", tries: each10s, writes: 0, passes: each10s},
		{method: "PullImage", tries: each5m + 1, writes: 2 * (each5m + 1), passes: 3 * (each5m + 1)},
		{method: "StartContainer", tries: each5m + 1, writes: 2 * (each5m + 1), passes: 3 * (each5m + 1)},
		{method: "ExecSync", tries: each5m + 1, writes: 3 * (each5m + 1), passes: 4 * (each5m + 1)},
	} {
		t.Run(tc.method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				metrics := prometheus.NewRegistry()
				w := agenttest.New(t)
				w.StopAgent()
				w.Metrics = metrics
				w.Join()
				w.Runtime.Calls.Inject(critest.Fault{Method: tc.method, Times: -1, Errs: errWithID})
				p := readyPod(3)
				if tc.method == "PullImage" {
					p.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
				}
				p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}}
				kubetest.Put(w.API, p)
				w.Settle(quiet)
				w.Runtime.Calls.Reset()
				w.API.ForgetRequests()
				before := passes(t, metrics)
				w.Settle(window)
				writes := 0
				for _, q := range w.API.Requests() {
					if q.Verb == "patch" && q.Resource == "pods" {
						writes++
					}
				}
				tries, done := w.Runtime.Calls.Count(tc.method), passes(t, metrics)-before
				t.Logf("in %s: %d calls of %s, %d writes of the status, %d passes", window, tries, tc.method, writes, done)
				if tries == 0 || tries > tc.tries {
					t.Errorf("%d calls of %s, want 1 to %d", tries, tc.method, tc.tries)
				}
				if writes > tc.writes {
					t.Errorf("%d writes of the status, want at most %d", writes, tc.writes)
				}
				if done > tc.passes {
					t.Errorf("%d passes, want at most %d", done, tc.passes)
				}
			})
		})
	}
}

// Nor does anything that wakes the worker meanwhile lead to another try: events of the runtime, or
// a controller that changes its condition of the pod each second.
func TestFailedStartsWaitWhoeverAsks(t *testing.T) {
	const seconds = 300
	for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "PullImage", "ImageStatus", "ExecSync"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := agenttest.New(t)
				w.StopAgent()
				w.Join()
				w.Runtime.Calls.Inject(critest.Fault{Method: method, Times: -1, Errs: errWithID})
				p := readyPod(3)
				if method == "PullImage" {
					p.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
				}
				p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}}
				uid := kubetest.Put(w.API, p).UID
				wake := func(i int) *v1.Pod {
					p, ok := kubetest.Get[*v1.Pod](w.API, p.Namespace, p.Name)
					if !ok {
						t.Fatal("the pod is gone")
					}
					p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == "example.com/count" })
					p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: "example.com/count", Status: v1.ConditionTrue, Message: fmt.Sprint(i)})
					w.Runtime.Events.Flood(1, 0, string(uid))
					return p
				}
				w.Settle(30 * time.Second)
				w.Runtime.Calls.Reset()
				for i := range seconds {
					kubetest.Put(w.API, wake(i))
					w.Settle(time.Second)
				}
				tries := w.Runtime.Calls.Count(method)
				t.Logf("in %d s: %d calls of %s", seconds, tries, method)
				if most := seconds * 12 / 10 / 10; tries == 0 || tries > most { // Settle takes a little longer than a second
					t.Errorf("%d calls of %s in %d s, want 1 to %d", tries, method, seconds, most)
				}
			})
		})
	}
}

// passes returns how many passes the workers have made.
func passes(t *testing.T, r prometheus.Gatherer) (n int) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kubelet_pod_worker_duration_seconds" {
			for _, m := range f.GetMetric() {
				n += int(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}
