package agent

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
)

// Before the runtime has answered nothing can be changed, and nothing is there. From then on its
// answer counts.
func TestRuntimeInfoBeforeTheRuntimeAnswers(t *testing.T) {
	i, ctx, p := newRuntimeInfo(nil), t.Context(), &v1.Pod{}
	_, usage := i.PodMemoryUsage(p)
	for name, err := range map[string]error{
		"EnsurePod": i.EnsurePod(ctx, p), "RemovePod": i.RemovePod(ctx, "1"), "ResizePod": i.ResizePod(ctx, p, cgroups.MemoryLimit),
		"PodMemoryUsage": usage, "KillPod": i.KillPod(ctx, "1"), "KillContainer": i.KillContainer(ctx, "1", "c"),
		"EnforceAllocatable": i.EnforceAllocatable(),
	} {
		if !errors.Is(err, errNotReady) {
			t.Errorf("%s: got %v, want %v", name, err, errNotReady)
		}
	}
	listed, listErr := i.List()
	occupied, occupiedErr := i.IsOccupied("1")
	processes, processesErr := i.Processes("1")
	empty, emptyErr := i.EmptyContainers()
	if err := errors.Join(listErr, occupiedErr, processesErr, emptyErr, i.RemoveEmpty(nil), i.RemoveQoS()); err != nil {
		t.Error(err)
	}
	if len(listed) > 0 || occupied || len(processes) > 0 || len(empty) > 0 || i.PodPath("1") != "" || i.QoSPath(v1.PodQOSBurstable) != "" || i.PodParent(p) != "" {
		t.Error("there is something before the runtime has answered")
	}
	made := 0
	for range 2 { // the second time after a restart of the runtime
		if err := i.set("containerd", "2", func() (ContainerManager, error) { made++; return fixedCgroups{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if i.PodPath("1") != "/pod1" || made != 1 || i.runtimeName() != "containerd" || i.runtimeVersion() != "2" {
		t.Errorf("the pod is at %q, cgroups were made %d times, for %s %s", i.PodPath("1"), made, i.runtimeName(), i.runtimeVersion())
	}
	if err := newRuntimeInfo(nil).set("", "", func() (ContainerManager, error) { return nil, errNotReady }); !errors.Is(err, errNotReady) {
		t.Errorf("cgroups that cannot be made: got %v", err)
	}
}

// fixedCgroups are cgroups of which the paths are known.
type fixedCgroups struct{ noCgroups }

// PodPath returns the pod's path.
func (fixedCgroups) PodPath(uid pod.UID) string { return "/pod" + string(uid) }
