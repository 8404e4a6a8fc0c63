package kuberuntime

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri/critest"
)

// A sandbox or container that the runtime refused to make is not asked for again before its
// back-off ends, however many passes there are, unless the pod has changed. Meanwhile the container
// waits for the reason of the last try.
func TestRefusedCreationsAreHeldBack(t *testing.T) {
	for _, method := range []string{"RunPodSandbox", "CreateContainer"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.fake.Calls.Inject(critest.Fault{Method: method, Times: -1, Err: status.Error(codes.Unknown, "no room")})
				p := podOf(v1.RestartPolicyAlways, "a")
				calls := func(want int) {
					t.Helper()
					if got := b.fake.Calls.Count(method); got != want {
						t.Fatalf("%d calls of %s, want %d", got, method, want)
					}
				}
				pass := func(p *v1.Pod) (Result, error) { return b.trySync(t.Context(), p) }
				first, failed := pass(p)
				calls(1)
				for range 5 {
					time.Sleep(time.Second)
					held, err := pass(p)
					calls(1)
					if held.Touched || !held.RetryAt.IsZero() || fmt.Sprint(err) != fmt.Sprint(failed) {
						t.Fatalf("a pass that tries nothing returns %+v, %v: want what the last one did, %v", held, err, failed)
					}
					if method == "CreateContainer" && (held.StartErrors["a"] != first.StartErrors["a"] || held.StartErrors["a"].Reason != lifecycle.CreateContainerError) {
						t.Fatalf("the container waits for %+v, want %+v", held.StartErrors["a"], first.StartErrors["a"])
					}
				}
				changed := p.DeepCopy()
				changed.Status.PodIP = "10.0.0.1"
				_, _ = pass(changed)
				calls(1) // a status is nothing that it is made from
				changed.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", Value: "b"}}
				_, _ = pass(changed)
				calls(2)
				_, _ = pass(changed)
				calls(2)
				time.Sleep(createBackOff)
				_, _ = pass(changed)
				calls(3)
			})
		})
	}
}

// A runtime that does not answer is asked again as soon as it does.
func TestCreationsOfARuntimeThatIsAwayAreNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Calls.Inject(critest.Fault{Method: "RunPodSandbox", Err: status.Error(codes.Unavailable, "connection refused")})
		p := podOf(v1.RestartPolicyAlways, "a")
		for range 2 {
			_, _ = b.trySync(t.Context(), p)
		}
		if got := b.fake.Calls.Count("RunPodSandbox"); got != 2 {
			t.Errorf("%d calls, want 2", got)
		}
	})
}

// A container that could not be created does not wait for the longer back-off of another one.
func TestRefusedCreationBesideALongerBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Calls.Fail("CreateContainer", -1, status.Error(codes.Unknown, "no room"))
		p := podOf(v1.RestartPolicyAlways, "a", "b")
		p.Spec.Containers[1].Image = "absent:1"
		var res Result
		for range 60 {
			res, _ = b.trySync(t.Context(), p)
			time.Sleep(time.Second)
		}
		image := res.StartErrors["b"].BackOffUntil
		if time.Until(image) < createBackOff || res.RetryAt.IsZero() || time.Until(res.RetryAt) > createBackOff {
			t.Errorf("the pod is retried at %s, and the image at %s: want a retry within %s", res.RetryAt, image, createBackOff)
		}
	})
}
