package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/events/messagestest"
)

// Containers that were taken away to be restarted with all others wait for that, whatever their
// policies, and the pod is pending.
func TestRestartingAll(t *testing.T) {
	p := newPod(withInit(containers("init")...))
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	restarting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "RestartingAllContainers"}}
	killed := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: "RestartingAllContainers", ExitCode: 137, StartedAt: at(1), ContainerID: apiID("app", 0),
	}}
	done := endOf("init", 0, 0)
	before := v1.PodStatus{
		Phase:                 v1.PodRunning,
		InitContainerStatuses: []v1.ContainerStatus{{Name: "init", State: done, ContainerID: apiID("init", 0)}},
		ContainerStatuses:     []v1.ContainerStatus{{Name: "app", State: runningSince(0), ContainerID: apiID("app", 0), RestartCount: 2}},
	}
	asked := before
	asked.Conditions = []v1.PodCondition{{Type: v1.AllContainersRestarting, Status: v1.ConditionTrue}}
	observed := pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}}}}
	errs := map[string]lifecycle.StartError{"init": {Reason: lifecycle.RestartingAllContainers}, "app": {Reason: lifecycle.RestartingAllContainers}}
	want := []containerView{
		{State: restarting, Last: done},
		{State: restarting, Last: killed, Restarts: 2},
	}
	check := func(what string, in Input) v1.PodStatus {
		t.Helper()
		s := Generate(in)
		for _, c := range s.ContainerStatuses {
			messagestest.Saw("waiting", c.State.Waiting.Reason, c.State.Waiting.Message)
			messagestest.Saw("status", c.LastTerminationState.Terminated.Reason, c.LastTerminationState.Terminated.Message)
		}
		if d := cmp.Diff(want, []containerView{view(s.InitContainerStatuses[0]), view(s.ContainerStatuses[0])}); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
		if s.Phase != v1.PodPending {
			t.Errorf("%s: phase %s, want Pending", what, s.Phase)
		}
		if err := checkTransitions(p, &in.Old, &s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return s
	}
	base := Input{Pod: p, Observed: observed, RuntimeName: "containerd", Now: epoch}
	in := base
	in.Old, in.StartErrors = before, errs
	after := check("by the pass", in)
	in = base
	in.Old = after
	check("after a restart of the agent", in)
	in = base
	in.Old = asked
	check("after a restart of the agent before anything was told", in)
	in = base
	in.Old, in.Terminal = after, true
	if s := Generate(in); s.ContainerStatuses[0].State.Waiting != nil && s.ContainerStatuses[0].State.Waiting.Reason == "RestartingAllContainers" {
		t.Error("a pod that has ended for good restarts its containers")
	}
}
