package lifecycle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

func TestRestartAllTriggers(t *testing.T) {
	all := []v1.ContainerRestartRule{rule(v1.ContainerRestartRuleActionRestartAllContainers, v1.ContainerRestartRuleOnExitCodesOpIn, 0, 42)}
	at := func(name string, code int32, sandbox pod.SandboxID) pod.ContainerStatus {
		return pod.ContainerStatus{Name: name, State: pod.StateExited, ExitCode: code, SandboxID: sandbox}
	}
	running := pod.ContainerStatus{Name: "app", State: pod.StateRunning, SandboxID: "new"}
	for _, tt := range []struct {
		name       string
		containers []pod.ContainerStatus
		change     func(p *v1.Pod)
		want       []string
	}{
		{name: "regular container", containers: []pod.ContainerStatus{at("app", 42, "new")}, want: []string{"app"}},
		{name: "all that ask, init containers first", containers: []pod.ContainerStatus{at("app", 42, "new"), at("sidecar", 0, "new"), at("init", 42, "new")}, want: []string{"init", "sidecar", "app"}},
		{name: "another code", containers: []pod.ContainerStatus{at("app", 1, "new")}},
		{name: "it was restarted since", containers: []pod.ContainerStatus{running, at("app", 42, "new")}},
		{name: "it ended in an earlier sandbox", containers: []pod.ContainerStatus{at("app", 42, "old")}},
		{name: "an init container that succeeded", containers: []pod.ContainerStatus{at("init", 0, "new")}},
		{name: "the pod is being deleted", containers: []pod.ContainerStatus{at("app", 42, "new")}, change: func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }},
		{name: "no policy of its own", containers: []pod.ContainerStatus{at("app", 42, "new")}, change: func(p *v1.Pod) { p.Spec.Containers[0].RestartPolicy = nil }},
		{
			name: "an earlier rule restarts it alone", containers: []pod.ContainerStatus{at("app", 42, "new")},
			change: func(p *v1.Pod) {
				c := &p.Spec.Containers[0]
				one := rule(v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleOnExitCodesOpIn, 42)
				c.RestartPolicyRules = append([]v1.ContainerRestartRule{one}, c.RestartPolicyRules...)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := testPod(v1.RestartPolicyNever)
			p.Spec.InitContainers[0].RestartPolicy = policy(v1.ContainerRestartPolicyNever)
			p.Spec.Containers[0].RestartPolicy = policy(v1.ContainerRestartPolicyNever)
			for _, c := range []*v1.Container{&p.Spec.InitContainers[0], &p.Spec.InitContainers[1], &p.Spec.Containers[0]} {
				c.RestartPolicyRules = all
			}
			if tt.change != nil {
				tt.change(p)
			}
			s := &pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "new"}, {ID: "old"}}, Containers: tt.containers}
			if d := cmp.Diff(tt.want, RestartAllTriggers(p, s)); d != "" {
				t.Errorf("triggers (-want +got):\n%s", d)
			}
			if got := RestartAllTriggers(p, &pod.Status{Containers: tt.containers}); got != nil {
				t.Errorf("without a sandbox: %v", got)
			}
		})
	}
}
