package kuberuntime

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/lifecycle"
	"berth/internal/pod"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// podOf returns a pod with the named containers; a name with the prefix "init-" is an init container, "sidecar-" a sidecar.
func podOf(policy v1.RestartPolicy, names ...string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", "u1"
	p.Spec.RestartPolicy = policy
	for _, n := range names {
		c := v1.Container{Name: n, Image: "i"}
		switch {
		case len(n) > 5 && n[:5] == "init-":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case len(n) > 8 && n[:8] == "sidecar-":
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

type mod func(*pod.Status)

func sandbox(ready bool) mod {
	return func(s *pod.Status) {
		sb := pod.SandboxStatus{ID: "s0", Ready: ready, CreatedAt: t0, IPs: []string{"10.0.0.1"}}
		s.Sandboxes = append(s.Sandboxes, sb)
	}
}

func container(name string, state pod.ContainerState, code int32) mod {
	return func(s *pod.Status) {
		n := time.Duration(len(s.Containers))
		cs := pod.ContainerStatus{
			ID: pod.ContainerID("c-" + name), SandboxID: "s0", Name: name, State: state, ExitCode: code, CreatedAt: t0.Add(-n * time.Second),
			Hash: lifecycle.ContainerHash(&v1.Container{Name: name, Image: "i"}),
		}
		if state == pod.StateExited {
			cs.FinishedAt = t0
		}
		s.Containers = append(s.Containers, cs)
	}
}

func observed(mods ...mod) *pod.Status {
	s := &pod.Status{UID: "u1", Name: "web", Namespace: "default"}
	for _, m := range mods {
		m(s)
	}
	return s
}

func TestComputePodActions(t *testing.T) {
	const (
		running = pod.StateRunning
		exited  = pod.StateExited
	)
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	changed := podOf(never, "a", "b")
	changed.Spec.Containers[0].Image = "other"
	deleted := podOf(always, "a")
	deleted.DeletionTimestamp = nowTime()
	for _, tc := range []struct {
		name string
		pod  *v1.Pod
		s    *pod.Status
		want string
	}{
		{"new pod", podOf(always, "a", "b"), observed(), "create sandbox 0, start a (new sandbox), start b (new sandbox)"},
		{"new pod with init containers", podOf(always, "init-1", "init-2", "a"), observed(), "create sandbox 0, start init-1 (first init container)"},
		{"new pod being deleted", deleted, observed(), "stop the pod"},
		{"all running", podOf(always, "a"), observed(sandbox(true), container("a", running, 0)), "nothing to do"},
		{"sandbox without containers", podOf(always, "a"), observed(sandbox(true)), "start a (it has no container)"},
		{"crashed, Always", podOf(always, "a", "b"), observed(sandbox(true), container("a", exited, 1), container("b", running, 0)), "start a (it exited with code 1)"},
		{"ended, Always", podOf(always, "a"), observed(sandbox(true), container("a", exited, 0)), "start a (it exited with code 0)"},
		{"ended, OnFailure, another runs", podOf(onFailure, "a", "b"), observed(sandbox(true), container("a", exited, 0), container("b", running, 0)), "nothing to do"},
		{"crashed, OnFailure", podOf(onFailure, "a", "b"), observed(sandbox(true), container("a", exited, 2), container("b", running, 0)), "start a (it exited with code 2)"},
		{"crashed, Never, another runs", podOf(never, "a", "b"), observed(sandbox(true), container("a", exited, 2), container("b", running, 0)), "nothing to do"},
		{"all ended, Never", podOf(never, "a"), observed(sandbox(true), container("a", exited, 0)), "stop the pod"},
		{
			"definition changed, even with Never", changed, observed(sandbox(true), container("a", running, 0), container("b", running, 0)),
			"stop a (Container a definition changed, will be restarted), start a (definition changed)",
		},
		{"created but not started", podOf(always, "a"), observed(sandbox(true), container("a", pod.StateCreated, 0)), "start a (its container is created)"},
		{"state unknown", podOf(always, "a"), observed(sandbox(true), container("a", pod.StateUnknown, 0)), "stop a (its state is unknown), start a (its container is unknown)"},
		{"sandbox died, containers ended", podOf(always, "a"), observed(sandbox(false), container("a", exited, 137)), "create sandbox 1, start a (new sandbox)"},
		{"sandbox died, a container still runs", podOf(always, "a"), observed(sandbox(false), container("a", running, 0)), "stop the pod, create sandbox 1, start a (new sandbox)"},
		{"sandbox died, Never", podOf(never, "a"), observed(sandbox(false), container("a", exited, 1)), "stop the pod"},
		{"sandbox died, OnFailure, all succeeded", podOf(onFailure, "a"), observed(sandbox(false), container("a", exited, 0)), "stop the pod"},
		{
			"sandbox died, init runs again", podOf(always, "init-1", "a"), observed(sandbox(false), container("init-1", exited, 0), container("a", exited, 1)),
			"create sandbox 1, start init-1 (first init container)",
		},

		{"init runs", podOf(always, "init-1", "a"), observed(sandbox(true), container("init-1", running, 0)), "nothing to do"},
		{"init done", podOf(always, "init-1", "init-2", "a"), observed(sandbox(true), container("init-1", exited, 0)), "start init-2 (init container init-1 is done)"},
		{"last init done", podOf(always, "init-1", "a"), observed(sandbox(true), container("init-1", exited, 0)), "start a (it has no container)"},
		{"init failed, Always", podOf(always, "init-1", "a"), observed(sandbox(true), container("init-1", exited, 1)), "start init-1 (it exited with code 1)"},
		{"init failed, Never", podOf(never, "init-1", "a"), observed(sandbox(true), container("init-1", exited, 1)), "stop the pod"},
		{"init removed after the pod was initialised", podOf(always, "init-1", "a"), observed(sandbox(true), container("a", running, 0)), "nothing to do"},

		{"sidecar runs, next starts", podOf(always, "sidecar-1", "init-2", "a"), observed(sandbox(true), container("sidecar-1", running, 0)), "start init-2 (init container sidecar-1 is done)"},
		{"sidecar is last", podOf(always, "sidecar-1", "a"), observed(sandbox(true), container("sidecar-1", running, 0)), "start a (it has no container)"},
		{"sidecar died while the pod runs", podOf(never, "sidecar-1", "a"), observed(sandbox(true), container("sidecar-1", exited, 1), container("a", running, 0)), "start sidecar-1 (it exited with code 1)"},
		{
			"sidecar died while a later init runs", podOf(always, "sidecar-1", "init-2", "a"), observed(sandbox(true), container("sidecar-1", exited, 0), container("init-2", running, 0)),
			"start sidecar-1 (it exited with code 0)",
		},
		{"regular containers done, sidecar is not restarted", podOf(never, "sidecar-1", "a"), observed(sandbox(true), container("sidecar-1", exited, 1), container("a", exited, 0)), "stop the pod"},
		{"regular containers done, sidecar still runs", podOf(never, "sidecar-1", "a"), observed(sandbox(true), container("sidecar-1", running, 0), container("a", exited, 0)), "stop the pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := computePodActions(tc.pod, tc.s)
			if got := a.String(); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if again := computePodActions(tc.pod, tc.s); again.String() != a.String() {
				t.Error("the same values give another plan")
			}
		})
	}
}

func TestComputeGarbage(t *testing.T) {
	s := observed(sandbox(true), container("a", pod.StateRunning, 0), container("a", pod.StateExited, 1), container("a", pod.StateExited, 2), container("b", pod.StateExited, 0))
	for i := range s.Containers {
		s.Containers[i].ID += pod.ContainerID(rune('0' + i))
	}
	s.Sandboxes = append(s.Sandboxes, pod.SandboxStatus{ID: "dead"}, pod.SandboxStatus{ID: "used"})
	s.Containers[3].SandboxID = "used"
	containers, sandboxes := computeGarbage(s)
	if len(containers) != 1 || containers[0] != "c-a2" {
		t.Errorf("containers: got %v, want the older dead one of a", containers)
	}
	if len(sandboxes) != 1 || sandboxes[0] != "dead" {
		t.Errorf("sandboxes: got %v, want the dead one without containers", sandboxes)
	}
}

func TestSidecarWaits(t *testing.T) {
	p := podOf(v1.RestartPolicyAlways, "sidecar-1", "init-2", "sidecar-3", "a", "b")
	for name, want := range map[string]int{"sidecar-1": 3, "sidecar-3": 2, "init-2": 0, "a": 0} {
		if got := sidecarWaits(p, name); len(got) != want {
			t.Errorf("%s waits for %v, want %d containers", name, got, want)
		}
	}
}

func nowTime() *metav1.Time { return &metav1.Time{Time: t0} }
