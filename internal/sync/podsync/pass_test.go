package podsync

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/kuberuntime"
)

func TestStepsOfAPass(t *testing.T) {
	no := errors.New("no")
	for _, tc := range []struct {
		name string
		// fails, over and killed are what becomes of the second of three steps and one that is
		// always done.
		fails, over, killed bool
		done                []string
		err                 string
	}{
		{name: "all is well", done: []string{"a", "b", "always", "c"}},
		{name: "a step fails", fails: true, done: []string{"a", "b", "always"}, err: "sync pod default/web: step b: no"},
		{name: "the pod is over", over: true, done: []string{"a", "b"}},
		{name: "the pass is ended", killed: true, done: []string{"a", "b", "always"}, err: "context canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := &Request{UID: "u", Pod: testPod()}
			var done []string
			note := func(name string) func(context.Context) error {
				return func(context.Context) error {
					done = append(done, name)
					return nil
				}
			}
			err := runSteps(ctx, "sync pod", r, []step{
				{name: "a", do: note("a")},
				{name: "b", do: func(context.Context) error {
					_ = note("b")(ctx)
					if tc.over {
						return errTerminal
					}
					if tc.killed {
						cancel()
					}
					if tc.fails {
						return no
					}
					return nil
				}},
				{name: "always", do: note("always"), always: true},
				{name: "c", do: note("c")},
			})
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tc.err || tc.fails && !errors.Is(err, no) {
				t.Errorf("got %q, want %q", got, tc.err)
			}
			if d := cmp.Diff(tc.done, done); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
		})
	}
}

func TestNameOfAPass(t *testing.T) {
	for want, r := range map[string]Request{
		"default/web": {UID: "u", Pod: testPod(), Observed: &pod.Status{Name: "other"}},
		"left/over":   {UID: "u", Observed: &pod.Status{Namespace: "left", Name: "over"}},
		"u":           {UID: "u"},
	} {
		if got := nameOf(&r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// failing is a runtime whose pass fails after a container could not be started.
type failing struct{ *stage }

func (f failing) SyncPod(context.Context, kuberuntime.Request) (kuberuntime.Result, error) {
	return kuberuntime.Result{StartErrors: map[string]lifecycle.StartError{"c": {Reason: "ErrImagePull", Message: "gone"}}}, errors.New("no")
}

func TestFailuresAreReportedByThePassThatHasThem(t *testing.T) {
	st := &stage{}
	s := newSyncer(t, st)
	s.Runtime = failing{st}
	if _, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}}); err == nil {
		t.Error("the pass did not fail")
	}
	got, _ := s.Status.Get("u")
	want := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "gone"}}
	if d := cmp.Diff(want, got.ContainerStatuses[0].State); d != "" {
		t.Errorf("state of the container (-want +got):\n%s", d)
	}
}
