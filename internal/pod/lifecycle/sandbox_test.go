package lifecycle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

func TestNeedsNewSandbox(t *testing.T) {
	ips := []string{"10.0.0.2"}
	for _, tt := range []struct {
		name        string
		hostNetwork bool
		sandboxes   []pod.SandboxStatus
		want        SandboxDecision
	}{
		{name: "none", want: SandboxDecision{Create: true, Why: "no sandbox"}},
		{
			name:      "usable",
			sandboxes: []pod.SandboxStatus{{ID: "b", Attempt: 3, Ready: true, IPs: ips}, {ID: "a", Attempt: 2}},
			want:      SandboxDecision{Attempt: 3, OldID: "b"},
		},
		{
			name:      "newest not ready",
			sandboxes: []pod.SandboxStatus{{ID: "a", Attempt: 0}},
			want:      SandboxDecision{Create: true, Attempt: 1, OldID: "a", Why: "sandbox is not ready"},
		},
		{
			name:      "older one is the ready one",
			sandboxes: []pod.SandboxStatus{{ID: "b", Attempt: 1}, {ID: "a", Ready: true, IPs: ips}},
			want:      SandboxDecision{Create: true, Attempt: 2, OldID: "b", Why: "sandbox is not ready"},
		},
		{
			name:      "two ready",
			sandboxes: []pod.SandboxStatus{{ID: "b", Attempt: 1, Ready: true, IPs: ips}, {ID: "a", Ready: true, IPs: ips}},
			want:      SandboxDecision{Create: true, Attempt: 2, OldID: "b", Why: "more than one sandbox is ready"},
		},
		{
			name:        "pod moved to the host's network",
			hostNetwork: true,
			sandboxes:   []pod.SandboxStatus{{ID: "a", Ready: true, IPs: ips}},
			want:        SandboxDecision{Create: true, Attempt: 1, Why: "network namespace mode changed"},
		},
		{
			name:      "pod left the host's network",
			sandboxes: []pod.SandboxStatus{{ID: "a", Ready: true, HostNetwork: true}},
			want:      SandboxDecision{Create: true, Attempt: 1, Why: "network namespace mode changed"},
		},
		{
			name:      "no address",
			sandboxes: []pod.SandboxStatus{{ID: "a", Ready: true}},
			want:      SandboxDecision{Create: true, Attempt: 1, OldID: "a", Why: "sandbox has no IP address"},
		},
		{
			name:        "no address in the host's network",
			hostNetwork: true,
			sandboxes:   []pod.SandboxStatus{{ID: "a", Ready: true, HostNetwork: true}},
			want:        SandboxDecision{OldID: "a"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := testPod(v1.RestartPolicyAlways)
			p.Spec.HostNetwork = tt.hostNetwork
			got := NeedsNewSandbox(p, &pod.Status{Sandboxes: tt.sandboxes})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHasInitialized(t *testing.T) {
	app := func(s pod.ContainerState, sandbox pod.SandboxID) []pod.ContainerStatus {
		return []pod.ContainerStatus{{Name: "app", State: s, SandboxID: sandbox}}
	}
	for _, tt := range []struct {
		name       string
		containers []pod.ContainerStatus
		want       bool
	}{
		{"nothing", nil, false},
		{"only an init container", []pod.ContainerStatus{{Name: "init", State: pod.StateRunning, SandboxID: "new"}}, false},
		{"created", app(pod.StateCreated, "new"), true},
		{"running", app(pod.StateRunning, "new"), true},
		{"exited in this sandbox", app(pod.StateExited, "new"), true},
		{"exited before a reboot", app(pod.StateExited, "old"), false},
		{"created in a sandbox that is gone", app(pod.StateCreated, "old"), false},
		{"running in a sandbox that is gone", app(pod.StateRunning, "old"), false},
		{"unknown", app(pod.StateUnknown, "new"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "new", Attempt: 1}, {ID: "old"}}, Containers: tt.containers}
			if got := HasInitialized(testPod(v1.RestartPolicyAlways), s); got != tt.want {
				t.Errorf("HasInitialized is %v, want %v", got, tt.want)
			}
		})
	}
}

func TestInitFailed(t *testing.T) {
	for _, tt := range []struct {
		cs   pod.ContainerStatus
		want bool
	}{
		{pod.ContainerStatus{ExitCode: 0, Reason: Completed}, false},
		{pod.ContainerStatus{ExitCode: 1, Reason: Error}, true},
		{pod.ContainerStatus{ExitCode: 0, Reason: OOMKilled}, true},
	} {
		if got := InitFailed(&tt.cs); got != tt.want {
			t.Errorf("InitFailed of code %d, reason %s is %v", tt.cs.ExitCode, tt.cs.Reason, got)
		}
	}
}

func TestEndsWithSandbox(t *testing.T) {
	exited := func(code int32) pod.ContainerStatus {
		return pod.ContainerStatus{Name: "app", State: pod.StateExited, ExitCode: code, SandboxID: "a"}
	}
	lost := []pod.SandboxStatus{{ID: "b", Attempt: 1}, {ID: "a"}}
	for _, tt := range []struct {
		name      string
		policy    v1.RestartPolicy
		sandboxes []pod.SandboxStatus
		app       pod.ContainerStatus
		want      bool
	}{
		{"it has a sandbox", v1.RestartPolicyNever, []pod.SandboxStatus{{ID: "a", Ready: true, IPs: []string{"10.0.0.2"}}}, exited(1), false},
		{"Never, and a container has run", v1.RestartPolicyNever, lost, pod.ContainerStatus{Name: "app", State: pod.StateRunning}, true},
		{"OnFailure, and a container runs", v1.RestartPolicyOnFailure, lost, pod.ContainerStatus{Name: "app", State: pod.StateRunning}, false},
		{"OnFailure, and it failed", v1.RestartPolicyOnFailure, lost, exited(1), false},
		{"OnFailure, and it succeeded", v1.RestartPolicyOnFailure, lost, exited(0), true},
		{"Always, and it succeeded", v1.RestartPolicyAlways, lost, exited(0), false},
		{"OnFailure, and it has not run", v1.RestartPolicyOnFailure, lost, pod.ContainerStatus{Name: "init", State: pod.StateExited}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &pod.Status{Sandboxes: tt.sandboxes, Containers: []pod.ContainerStatus{tt.app}}
			if got := EndsWithSandbox(testPod(tt.policy), s); got != tt.want {
				t.Errorf("EndsWithSandbox is %v, want %v", got, tt.want)
			}
		})
	}
}
