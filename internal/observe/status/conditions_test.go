package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

// said is a condition without its generation and times.
type said struct {
	Status          v1.ConditionStatus
	Reason, Message string
}

func TestConditions(t *testing.T) {
	const (
		sandbox  = v1.PodReadyToStartContainers
		inited   = v1.PodInitialized
		ready    = v1.PodReady
		cReady   = v1.ContainersReady
		schedule = v1.PodScheduled
	)
	yes := said{Status: v1.ConditionTrue}
	unready := func(names string) said {
		return said{v1.ConditionFalse, "ContainersNotReady", "containers with unready status: [" + names + "]"}
	}
	incomplete := func(names string) said {
		return said{v1.ConditionFalse, "ContainersNotInitialized", "containers with incomplete status: [" + names + "]"}
	}
	no := said{Status: v1.ConditionFalse}
	noSandbox := pod.Status{}
	withSidecar := withInit(containers("init")[0], sidecar("proxy"))
	for _, tt := range []struct {
		name     string
		pod      *v1.Pod
		observed pod.Status
		change   []func(*Input)
		want     map[v1.PodConditionType]said
	}{
		{
			name: "just accepted", observed: noSandbox,
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: no, inited: yes, cReady: unready("app"), ready: unready("app")},
		},
		{
			name: "just accepted, with init containers", pod: newPod(withSidecar), observed: noSandbox,
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: no, inited: incomplete("init proxy"), cReady: unready("proxy app"), ready: unready("proxy app")},
		},
		{
			name: "sandbox without mounts", observed: observed(), change: []func(*Input){func(in *Input) { in.MountsMissing = true }},
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: no, inited: yes, cReady: unready("app"), ready: unready("app")},
		},
		{
			name: "init is done, sidecar has not started", observed: observed(seen("proxy", 0, pod.StateRunning), seenExited("init", 0, 0)),
			pod: newPod(withSidecar, func(p *v1.Pod) { p.Spec.InitContainers[1].StartupProbe = &v1.Probe{} }), change: []func(*Input){probes(nil, nil)},
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: yes, inited: incomplete("proxy"), cReady: unready("proxy app"), ready: unready("proxy app")},
		},
		{
			name: "sidecar has started", pod: newPod(withSidecar), observed: observed(seen("proxy", 0, pod.StateRunning), seenExited("init", 0, 0)), change: []func(*Input){probes(nil, []pod.ContainerID{id("proxy", 0)})},
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: yes, inited: yes, cReady: unready("app"), ready: unready("app")},
		},
		{
			name: "init fails", pod: newPod(withSidecar), observed: observed(seenExited("init", 0, 1)),
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: yes, inited: incomplete("init proxy"), cReady: unready("proxy app"), ready: unready("proxy app")},
		},
		{
			name: "running", observed: observed(seen("app", 0, pod.StateRunning)),
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: yes, inited: yes, cReady: yes, ready: yes},
		},
		{
			name: "sidecar restarts", pod: newPod(withSidecar), observed: observed(seen("app", 0, pod.StateRunning), seenExited("proxy", 0, 1), seenExited("init", 0, 0)),
			want: map[v1.PodConditionType]said{schedule: yes, sandbox: yes, inited: yes, cReady: unready("proxy"), ready: unready("proxy")},
		},
		{
			name: "initialized stays", pod: newPod(withSidecar), observed: observed(seen("init", 1, pod.StateRunning)),
			change: []func(*Input){after(v1.PodStatus{Conditions: []v1.PodCondition{{Type: inited, Status: v1.ConditionTrue}}})},
			want:   map[v1.PodConditionType]said{schedule: yes, sandbox: yes, inited: yes, cReady: unready("proxy app"), ready: unready("proxy app")},
		},
		{
			name: "succeeded", pod: newPod(withPolicy(v1.RestartPolicyNever)), observed: observed(seenExited("app", 0, 0)),
			want: map[v1.PodConditionType]said{
				schedule: yes, sandbox: yes, inited: {v1.ConditionTrue, "PodCompleted", ""},
				cReady: {v1.ConditionFalse, "PodCompleted", ""}, ready: {v1.ConditionFalse, "PodCompleted", ""},
			},
		},
		{
			name: "failed", pod: newPod(withPolicy(v1.RestartPolicyNever)), observed: observed(seenExited("app", 0, 1)),
			want: map[v1.PodConditionType]said{
				schedule: yes, sandbox: yes, inited: yes,
				cReady: {v1.ConditionFalse, "PodFailed", ""}, ready: {v1.ConditionFalse, "PodFailed", ""},
			},
		},
		{
			name: "readiness gates",
			pod: newPod(func(p *v1.Pod) {
				p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "a/ok"}, {ConditionType: "a/no"}, {ConditionType: "a/none"}}
				p.Status.Conditions = []v1.PodCondition{{Type: "a/ok", Status: v1.ConditionTrue}, {Type: "a/no", Status: v1.ConditionFalse}}
			}),
			observed: observed(seen("app", 0, pod.StateRunning)),
			want: map[v1.PodConditionType]said{
				schedule: yes, sandbox: yes, inited: yes, cReady: yes, "a/ok": yes, "a/no": no,
				ready: {
					v1.ConditionFalse, "ReadinessGatesNotReady",
					`the status of pod readiness gate "a/no" is not "True", but False, corresponding condition of pod readiness gate "a/none" does not exist.`,
				},
			},
		},
		{
			name: "conditions of others and of other parts stay", observed: observed(seen("app", 0, pod.StateRunning)),
			pod: newPod(func(p *v1.Pod) {
				p.Status.Conditions = []v1.PodCondition{{Type: "x/y", Status: "True", Reason: "R", Message: "m"}, {Type: v1.PodResizePending, Status: "True", Reason: "Infeasible"}}
			}),
			change: []func(*Input){
				after(v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.DisruptionTarget, Status: "True", Reason: "TerminationByKubelet"}}}),
				func(in *Input) { in.Resize.Pending = &allocation.Pending{Reason: "Deferred"} },
			},
			want: map[v1.PodConditionType]said{
				schedule: yes, sandbox: yes, inited: yes, cReady: yes, ready: yes, "x/y": {"True", "R", "m"},
				v1.PodResizePending: {"True", "Deferred", ""}, v1.DisruptionTarget: {"True", "TerminationByKubelet", ""},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pod
			if p == nil {
				p = newPod()
			}
			got := map[v1.PodConditionType]said{}
			for _, c := range generate(p, tt.observed, tt.change...).Conditions {
				if _, twice := got[c.Type]; twice {
					t.Errorf("condition %s twice", c.Type)
				}
				got[c.Type] = said{c.Status, c.Reason, c.Message}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAllContainersRestarting(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	p := newPod(func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.RestartPolicy = &never
		c.RestartPolicyRules = []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}
	})
	for _, tt := range []struct {
		name     string
		observed pod.ContainerStatus
		change   []func(*Input)
		want     said
	}{
		{"running", seen("app", 0, pod.StateRunning), nil, said{Status: v1.ConditionFalse}},
		{"other code", seenExited("app", 0, 1), nil, said{Status: v1.ConditionFalse}},
		{"matching code", seenExited("app", 0, 42), nil, said{v1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule"}},
		{"matching code, pod has ended", seenExited("app", 0, 42), []func(*Input){terminal}, said{Status: v1.ConditionFalse}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := condition(generate(p, observed(tt.observed), tt.change...), v1.AllContainersRestarting)
			if diff := cmp.Diff(tt.want, said{c.Status, c.Reason, c.Message}); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
			if c.ObservedGeneration != 0 {
				t.Errorf("it has generation %d, want none", c.ObservedGeneration)
			}
		})
	}
	if c := condition(generate(newPod(), observed()), v1.AllContainersRestarting); c.Type != "" {
		t.Errorf("a pod without such a rule has %+v", c)
	}
}

func TestObservedGeneration(t *testing.T) {
	s := generate(newPod(), observed())
	if s.ObservedGeneration != 4 {
		t.Errorf("status has generation %d, want 4", s.ObservedGeneration)
	}
	for _, c := range s.Conditions {
		if c.ObservedGeneration != 4 {
			t.Errorf("condition %s has generation %d, want 4", c.Type, c.ObservedGeneration)
		}
	}
}
