package podsync

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// shared is what shares out the node; it notes who was called.
type shared struct {
	*stage
	devices, claims, finish error
}

func (s *shared) PrepareDevices(context.Context, *v1.Pod) error { s.note("devices"); return s.devices }

func (s *shared) PrepareClaims(context.Context, *v1.Pod) error { s.note("claims"); return s.claims }

func (s *shared) Finish(context.Context, pod.UID) error { s.note("finish"); return s.finish }

func (s *shared) Health(*v1.Pod) map[string][]v1.ResourceStatus {
	return map[string][]v1.ResourceStatus{"c": {{Name: "example.com/gpu", Resources: []v1.ResourceHealth{{ResourceID: "g0", Health: "Unhealthy"}}}}}
}

func newShared(t *testing.T) (*Syncer, *shared) {
	st := &stage{}
	s := newSyncer(t, st)
	r := &shared{stage: st}
	s.Resources = r
	s.Observe = func(context.Context, pod.UID) (*pod.Status, error) { return &pod.Status{UID: "u"}, nil }
	return s, r
}

func TestWhatIsThePodsAloneIsReadyBeforeItsSandbox(t *testing.T) {
	s, r := newShared(t)
	if _, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"register", "devices", "cgroup", "prepare", "claims", "runtime"}; !slices.Equal(r.calls, want) {
		t.Errorf("calls %q, want %q", r.calls, want)
	}
	st, _ := s.Status.Get("u")
	if d := cmp.Diff(r.Health(nil)["c"], st.ContainerStatuses[0].AllocatedResourcesStatus); d != "" {
		t.Error(d)
	}
	// What has its sandbox has its claims.
	r.calls = nil
	ready := &pod.Status{UID: "u", Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true}}}
	if _, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: ready}); err != nil || slices.Contains(r.calls, "claims") {
		t.Errorf("error %v after %q", err, r.calls)
	}
}

func TestPodWhoseDevicesAreRefusedFails(t *testing.T) {
	s, r := newShared(t)
	r.devices = &topologymanager.Refusal{Reason: "UnexpectedAdmissionError", Message: "Allocate failed due to no, which is unexpected"}
	res, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}})
	st, _ := s.Status.Get("u")
	if err != nil || !res.Terminal || st.Phase != v1.PodFailed || st.Reason != "UnexpectedAdmissionError" || slices.Contains(r.calls, "runtime") {
		t.Errorf("error %v, terminal %t, status %s %s after %q", err, res.Terminal, st.Phase, st.Reason, r.calls)
	}

	// One that has run already waits.
	s, r = newShared(t)
	r.devices = &topologymanager.Refusal{Reason: "UnexpectedAdmissionError", Message: "no"}
	ran := &pod.Status{UID: "u", Containers: []pod.ContainerStatus{{ID: "1", Name: "c", State: pod.StateExited}}}
	res, err = s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: ran})
	if err == nil || res.Terminal {
		t.Errorf("error %v, terminal %t", err, res.Terminal)
	}
}

func TestClaimThatCannotBePrepared(t *testing.T) {
	s, r := newShared(t)
	r.claims = errors.New("prepare dynamic resources: ResourceClaim gpu: not allocated")
	_, err := s.SyncPod(t.Context(), Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}})
	if err == nil || slices.Contains(r.calls, "runtime") {
		t.Errorf("error %v after %q", err, r.calls)
	}
	want := []string{"Warning FailedPrepareDynamicResources Failed to prepare dynamic resources: prepare dynamic resources: ResourceClaim gpu: not allocated"}
	if !slices.Equal(r.events, want) {
		t.Errorf("events %q, want %q", r.events, want)
	}
}

// As long as a driver does not let go of a claim, the pod does not say that it is over.
func TestPodEndsWhenEverythingIsGivenBack(t *testing.T) {
	s, r := newShared(t)
	r.finish = errors.New("driver away")
	ended := &pod.Status{UID: "u", Containers: []pod.ContainerStatus{{ID: "1", Name: "c", State: pod.StateExited}}}
	s.Observe = func(context.Context, pod.UID) (*pod.Status, error) { return ended, nil }
	end := Request{UID: "u", Pod: testPod(), Observed: ended}
	if err := s.SyncTerminatingPod(t.Context(), end); err == nil {
		t.Error("the pod has ended although its claim is held")
	}
	if st, _ := s.Status.Get("u"); pod.IsTerminal(st.Phase) {
		t.Errorf("its phase is %s", st.Phase)
	}
	r.finish = nil
	if err := s.SyncTerminatingPod(t.Context(), end); err != nil {
		t.Error(err)
	}
	if st, _ := s.Status.Get("u"); !pod.IsTerminal(st.Phase) {
		t.Errorf("its phase is %s", st.Phase)
	}
}
