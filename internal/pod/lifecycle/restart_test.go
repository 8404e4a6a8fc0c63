package lifecycle

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

func policy(p v1.ContainerRestartPolicy) *v1.ContainerRestartPolicy { return &p }

func rule(action v1.ContainerRestartRuleAction, op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) v1.ContainerRestartRule {
	return v1.ContainerRestartRule{Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
}

// testPod has a plain init container, a sidecar, a regular and an ephemeral container.
func testPod(restart v1.RestartPolicy) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"},
		Spec: v1.PodSpec{
			RestartPolicy: restart,
			InitContainers: []v1.Container{
				{Name: "init"},
				{Name: "sidecar", RestartPolicy: policy(v1.ContainerRestartPolicyAlways)},
			},
			Containers:          []v1.Container{{Name: "app"}},
			EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}},
		},
	}
}

func specOf(p *v1.Pod, name string) *v1.Container {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return &p.Spec.InitContainers[i]
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon); c.Name == name {
			return &c
		}
	}
	return &p.Spec.Containers[0]
}

func exited(code int32) *pod.ContainerStatus {
	return &pod.ContainerStatus{State: pod.StateExited, ExitCode: code}
}

func TestShouldStart(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	in := func(s pod.ContainerState) *pod.ContainerStatus { return &pod.ContainerStatus{State: s} }
	oom := &pod.ContainerStatus{State: pod.StateExited, Reason: OOMKilled}
	for _, tt := range []struct {
		name      string
		policy    v1.RestartPolicy
		container string
		observed  *pod.ContainerStatus
		want      bool
	}{
		{"never seen", never, "app", nil, true},
		{"created", never, "app", in(pod.StateCreated), true},
		{"unknown", never, "app", in(pod.StateUnknown), true},
		{"running", always, "app", in(pod.StateRunning), false},
		{"Always, success", always, "app", exited(0), true},
		{"Always, failure", always, "app", exited(1), true},
		{"no policy counts as Always", "", "app", exited(0), true},
		{"OnFailure, success", onFailure, "app", exited(0), false},
		{"OnFailure, failure", onFailure, "app", exited(2), true},
		{"Never, success", never, "app", exited(0), false},
		{"Never, failure", never, "app", exited(1), false},
		{"init never seen", never, "init", nil, true},
		{"init running", always, "init", in(pod.StateRunning), false},
		{"init created", never, "init", in(pod.StateCreated), true},
		{"init succeeded, Always", always, "init", exited(0), false},
		{"init failed, Always", always, "init", exited(1), true},
		{"init failed, OnFailure", onFailure, "init", exited(1), true},
		{"init failed, Never", never, "init", exited(1), false},
		{"init out of memory with code 0, OnFailure", onFailure, "init", oom, true},
		{"init out of memory with code 0, Never", never, "init", oom, false},
		{"app out of memory with code 0, OnFailure", onFailure, "app", oom, false},
		{"sidecar succeeded, Never", never, "sidecar", exited(0), true},
		{"sidecar failed, OnFailure", onFailure, "sidecar", exited(1), true},
		{"sidecar running", always, "sidecar", in(pod.StateRunning), false},
		{"ephemeral never seen", never, "debug", nil, true},
		{"ephemeral ended", always, "debug", exited(1), false},
		{"ephemeral created", always, "debug", in(pod.StateCreated), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := testPod(tt.policy)
			if got := ShouldStart(p, specOf(p, tt.container), tt.observed); got != tt.want {
				t.Errorf("ShouldStart is %v, want %v", got, tt.want)
			}
			p.DeletionTimestamp = &metav1.Time{}
			if ShouldStart(p, specOf(p, tt.container), tt.observed) {
				t.Error("a container of a pod that is being deleted is started")
			}
		})
	}
}

func TestRestartRules(t *testing.T) {
	const restart, all = v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers
	const opIn, opNotIn = v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn
	for _, tt := range []struct {
		name   string
		pod    v1.RestartPolicy
		own    *v1.ContainerRestartPolicy
		rules  []v1.ContainerRestartRule
		code   int32
		want   bool
		action v1.ContainerRestartRuleAction
	}{
		{name: "own Never over pod's Always", pod: v1.RestartPolicyAlways, own: policy("Never"), code: 1},
		{name: "own OnFailure over pod's Never", pod: v1.RestartPolicyNever, own: policy("OnFailure"), code: 1, want: true},
		{name: "own OnFailure, success", pod: v1.RestartPolicyAlways, own: policy("OnFailure"), code: 0},
		{name: "In matches", own: policy("Never"), rules: []v1.ContainerRestartRule{rule(restart, opIn, 3, 42)}, code: 42, want: true, action: restart},
		{name: "In does not match", own: policy("Never"), rules: []v1.ContainerRestartRule{rule(restart, opIn, 3)}, code: 42},
		{name: "NotIn matches", own: policy("Never"), rules: []v1.ContainerRestartRule{rule(restart, opNotIn, 3)}, code: 42, want: true, action: restart},
		{name: "NotIn does not match", own: policy("Never"), rules: []v1.ContainerRestartRule{rule(restart, opNotIn, 42)}, code: 42},
		{
			name: "first match decides", own: policy("Never"), code: 7, want: true, action: all,
			rules: []v1.ContainerRestartRule{rule(restart, opIn, 1), rule(all, opIn, 7), rule(restart, opIn, 7)},
		},
		{name: "no match falls back to OnFailure", own: policy("OnFailure"), rules: []v1.ContainerRestartRule{rule(restart, opIn, 1)}, code: 2, want: true},
		{name: "rules need a policy of the container", pod: v1.RestartPolicyNever, rules: []v1.ContainerRestartRule{rule(restart, opIn, 1)}, code: 1, action: restart},
		{name: "unknown action is skipped", own: policy("Never"), rules: []v1.ContainerRestartRule{rule("Explode", opIn, 1)}, code: 1},
		{name: "rule without a condition is skipped", own: policy("Never"), rules: []v1.ContainerRestartRule{{Action: restart}}, code: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := testPod(tt.pod)
			c := &p.Spec.Containers[0]
			c.RestartPolicy, c.RestartPolicyRules = tt.own, tt.rules
			if got := IsRestartable(p, c, tt.code); got != tt.want {
				t.Errorf("IsRestartable is %v, want %v", got, tt.want)
			}
			if got := ShouldStart(p, c, exited(tt.code)); got != tt.want {
				t.Errorf("ShouldStart is %v, want %v", got, tt.want)
			}
			if action, _ := MatchingRule(c, tt.code); action != tt.action {
				t.Errorf("matching action is %q, want %q", action, tt.action)
			}
		})
	}
}

func TestIsSidecar(t *testing.T) {
	for own, want := range map[v1.ContainerRestartPolicy]bool{"Always": true, "OnFailure": false, "Never": false} {
		if got := IsSidecar(&v1.Container{RestartPolicy: policy(own)}); got != want {
			t.Errorf("IsSidecar with %s is %v", own, got)
		}
	}
	if IsSidecar(&v1.Container{}) {
		t.Error("a container without a restart policy is a sidecar")
	}
}
