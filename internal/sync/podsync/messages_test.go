package podsync

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/record/events/messagestest"
)

// The tests of the package produce each of its messages that programs match.
func TestMain(m *testing.M) { os.Exit(messagestest.Main(m, "internal/sync/podsync")) }

func TestEventOfAPodThatCannotBeKilled(t *testing.T) {
	st := &stage{killErr: errors.New("the runtime is down")}
	s := newSyncer(t, st)
	running := &pod.Status{UID: "u", Containers: []pod.ContainerStatus{{ID: "1", Name: "c", State: pod.StateRunning}}}
	s.Observe = func(context.Context, pod.UID) (*pod.Status, error) { return running, nil }
	if err := s.SyncTerminatingPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: running}); !errors.Is(err, st.killErr) {
		t.Errorf("got %v, want %v", err, st.killErr)
	}
	if d := cmp.Diff([]string{"Warning FailedKillPod error killing pod: the runtime is down"}, st.events); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

// An evicted pod is ended although its status cannot be written: it may be filling the disk.
func TestEvictionOverASlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &stage{killErr: errors.New("it was asked to end")}
		s := newSyncer(t, st)
		asked := false
		s.Checkpoint = func(ctx context.Context) { asked = true; <-ctx.Done() }
		running := &pod.Status{UID: "u", Containers: []pod.ContainerStatus{{ID: "1", Name: "c", State: pod.StateRunning}}}
		s.Observe = func(context.Context, pod.UID) (*pod.Status, error) { return running, nil }
		began := time.Now()
		err := s.SyncTerminatingPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: running, Evicted: true})
		if !errors.Is(err, st.killErr) || !asked || time.Since(began) != checkpointLimit {
			t.Errorf("after %v: %v; the status was to be written: %t", time.Since(began), err, asked)
		}
	})
}

func TestEventOfAPodPastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &stage{}
		s := newSyncer(t, st)
		p := testPod()
		p.Spec.ActiveDeadlineSeconds = ptr.To(int64(10))
		r := Request{UID: "u", Pod: p, Observed: &pod.Status{UID: "u", Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true, CreatedAt: time.Now()}}}}
		for _, want := range []bool{false, true} {
			if result, err := s.SyncPod(t.Context(), r); err != nil || result.Terminal != want {
				t.Fatalf("after %v: terminal %t, %v", time.Since(r.Observed.Sandboxes[0].CreatedAt), result.Terminal, err)
			}
			time.Sleep(10 * time.Second)
		}
		if d := cmp.Diff([]string{"Normal DeadlineExceeded Pod was active on the node longer than the specified deadline"}, st.events); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

// A pod in the network of its host keeps its addresses when the node's primary IP family changes,
// and has one event of it.
func TestEventOfAnotherFamilyOfTheHost(t *testing.T) {
	st := &stage{}
	s := newSyncer(t, st)
	for _, network := range []bool{true, false} {
		st.events = nil
		p := testPod()
		p.UID, p.Spec.HostNetwork = pod.UID(fmt.Sprint("u", network)), network
		var podIPs []v1.PodIP
		for _, hosts := range [][]string{{"192.0.2.1"}, {"192.0.2.1", "2001:db8::1"}, {"2001:db8::1", "192.0.2.1"}, {"2001:db8::1", "192.0.2.1"}} {
			s.HostIPs = func() []string { return hosts }
			r := Request{UID: p.UID, Pod: p, Observed: &pod.Status{UID: p.UID, IPs: []string{"198.51.100.1"}, Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true}}}}
			if _, err := s.SyncPod(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			got, _ := s.Status.Get(p.UID)
			podIPs = got.PodIPs
		}
		var want []string
		if network {
			want = []string{"Warning HostIPsIPFamilyMismatch podIPs [192.0.2.1 2001:db8::1] stay as they were reported, and their primary IP family is not that of hostIPs [2001:db8::1 192.0.2.1]: recreate the pod to change them"}
		}
		if d := cmp.Diff(want, st.events); d != "" || len(podIPs) == 0 {
			t.Errorf("host network %t: podIPs %v, events (-want +got):\n%s", network, podIPs, d)
		}
	}
}

// A resize that fails has one event until it succeeds, and its end has another.
func TestEventsOfAResize(t *testing.T) {
	st := &stage{resizeErr: errors.New("attempting to set pod memory limit (1) below current usage (2)")}
	s := newSyncer(t, st)
	s.Allocations = allocation.New(allocation.Config{})
	p := testPod()
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"cpu": resource.MustParse("1")}
	s.Allocations.Allocate(p)
	p = p.DeepCopy()
	p.Generation = 2
	p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("2")
	s.Allocations.Grant(p)
	r := Request{UID: "u", Pod: p, Observed: &pod.Status{UID: "u", Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true}}}}
	pass := func() {
		t.Helper()
		if _, err := s.SyncPod(t.Context(), r); err != nil && !errors.Is(err, st.resizeErr) {
			t.Fatal(err)
		}
	}
	pass()
	pass()
	st.resizeErr = nil
	s.Allocations.Complete(t.Context(), p)
	pass()
	const containers = `{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":2`
	want := []string{
		"Warning ResizeError Pod resize error: " + containers + `,"error":"attempting to set pod memory limit (1) below current usage (2)"}`,
		"Normal ResizeCompleted Pod resize completed: " + containers + "}",
	}
	if d := cmp.Diff(want, st.events); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}
