package lifecycle

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

func st(name string, state v1.ContainerState) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: state}
}

func running() v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{}}
}

func waiting() v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: ContainerCreating}}
}

func ended(code int32) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}
}

// again is a container that waits for its next start after it ended with code.
func again(name string, code int32) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: waiting(), LastTerminationState: ended(code)}
}

// anew is a container that was taken away after it ended with code, to be restarted with all
// others.
func anew(name string, code int32) v1.ContainerStatus {
	return v1.ContainerStatus{
		Name: name, LastTerminationState: ended(code),
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: RestartingAllContainers}},
	}
}

func startedStatus(cs v1.ContainerStatus) v1.ContainerStatus {
	yes := true
	cs.Started = &yes
	return cs
}

func TestPhase(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	list := func(l ...v1.ContainerStatus) []v1.ContainerStatus { return l }
	initDone := list(st("init", ended(0)), startedStatus(st("sidecar", running())))
	sidecarEnded := list(st("init", ended(0)), st("sidecar", ended(137)))
	for _, tt := range []struct {
		name   string
		policy v1.RestartPolicy
		init   []v1.ContainerStatus
		app    []v1.ContainerStatus
		facts  PhaseFacts
		want   v1.PodPhase
	}{
		{"nothing known", always, nil, nil, PhaseFacts{}, v1.PodPending},
		{"init waits", always, list(st("init", waiting()), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"init runs", always, list(st("init", running()), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"init failed, Never", never, list(st("init", ended(1)), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodFailed},
		{"init failed, Always", always, list(st("init", ended(1)), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"init in back-off", onFailure, list(again("init", 1), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"init failed before and waits, Never", never, list(again("init", 1), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodFailed},
		{"all restart, Never", never, list(anew("init", 0), anew("sidecar", 137)), list(anew("app", 137)), PhaseFacts{}, v1.PodPending},
		{"all restart, init failed before, Never", never, list(anew("init", 1), anew("sidecar", 137)), list(anew("app", 137)), PhaseFacts{}, v1.PodPending},
		{"all restart, init is done again, Never", never, list(st("init", ended(0)), anew("sidecar", 137)), list(anew("app", 137)), PhaseFacts{}, v1.PodPending},
		{"all restart, the app waits, Never", never, initDone, list(anew("app", 42)), PhaseFacts{HasInitialized: true}, v1.PodPending},
		{"init runs again after a reboot", always, list(st("init", running()), st("sidecar", ended(137))), list(again("app", 137)), PhaseFacts{}, v1.PodPending},
		{"sidecar not started", always, list(st("init", ended(0)), st("sidecar", running())), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"sidecar restarting after the app has run", always, list(st("init", ended(0)), st("sidecar", running())), list(st("app", running())), PhaseFacts{HasInitialized: true}, v1.PodRunning},
		{"sidecar cannot start", always, list(st("init", ended(0)), st("sidecar", waiting())), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"sidecar crashes before the app has run", always, list(st("init", ended(0)), again("sidecar", 1)), list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"sidecar without a status", always, list(st("init", ended(0))), list(st("app", running())), PhaseFacts{HasInitialized: true}, v1.PodPending},
		{"app waits", always, initDone, list(st("app", waiting())), PhaseFacts{}, v1.PodPending},
		{"app without a status", always, initDone, nil, PhaseFacts{}, v1.PodPending},
		{"app runs", always, initDone, list(st("app", running())), PhaseFacts{HasInitialized: true}, v1.PodRunning},
		{"app in back-off", always, sidecarEnded, list(again("app", 1)), PhaseFacts{HasInitialized: true}, v1.PodRunning},
		{"app ended, Always", always, sidecarEnded, list(st("app", ended(0))), PhaseFacts{HasInitialized: true}, v1.PodRunning},
		{"app failed, OnFailure", onFailure, sidecarEnded, list(st("app", ended(1))), PhaseFacts{HasInitialized: true}, v1.PodRunning},
		{"app done, OnFailure", onFailure, sidecarEnded, list(st("app", ended(0))), PhaseFacts{HasInitialized: true}, v1.PodSucceeded},
		{"app done, sidecar still runs", never, initDone, list(st("app", ended(0))), PhaseFacts{HasInitialized: true}, v1.PodRunning},
		{"app done, Never", never, sidecarEnded, list(st("app", ended(0))), PhaseFacts{HasInitialized: true}, v1.PodSucceeded},
		{"app failed, Never", never, sidecarEnded, list(st("app", ended(1))), PhaseFacts{HasInitialized: true}, v1.PodFailed},
		{"lost with code 0 before, Never", never, sidecarEnded, list(again("app", 0)), PhaseFacts{HasInitialized: true}, v1.PodFailed},
		{"terminal, all succeeded", always, sidecarEnded, list(st("app", ended(0))), PhaseFacts{Terminal: true, HasInitialized: true}, v1.PodSucceeded},
		{"terminal, one failed", always, sidecarEnded, list(st("app", ended(143))), PhaseFacts{Terminal: true, HasInitialized: true}, v1.PodFailed},
		{"terminal, never ran", always, initDone, list(st("app", waiting())), PhaseFacts{Terminal: true}, v1.PodPending},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &v1.PodStatus{InitContainerStatuses: tt.init, ContainerStatuses: tt.app}
			if got := Phase(testPod(tt.policy), s, tt.facts); got != tt.want {
				t.Errorf("phase is %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPhaseOfSeveralContainers(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy: v1.RestartPolicyNever,
		Containers: []v1.Container{{Name: "a"}, {
			Name: "b", RestartPolicy: policy("Never"),
			RestartPolicyRules: []v1.ContainerRestartRule{rule("Restart", v1.ContainerRestartRuleOnExitCodesOpIn, 42)},
		}},
	}}
	for _, tt := range []struct {
		name string
		a, b v1.ContainerStatus
		want v1.PodPhase
	}{
		{"both run", st("a", running()), st("b", running()), v1.PodRunning},
		{"one has never run", st("a", running()), st("b", waiting()), v1.PodPending},
		{"one ended", st("a", running()), st("b", ended(1)), v1.PodRunning},
		{"both succeeded", st("a", ended(0)), st("b", ended(0)), v1.PodSucceeded},
		{"one failed", st("a", ended(0)), st("b", ended(1)), v1.PodFailed},
		{"one is restarted by a rule", st("a", ended(0)), st("b", ended(42)), v1.PodRunning},
		{"one is restarted by a rule and waits", st("a", ended(0)), again("b", 42), v1.PodRunning},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{tt.a, tt.b}}
			if got := Phase(p, s, PhaseFacts{HasInitialized: true}); got != tt.want {
				t.Errorf("phase is %s, want %s", got, tt.want)
			}
		})
	}

	for _, tt := range []struct {
		name string
		a, b v1.ContainerStatus
		want v1.PodPhase
	}{
		{"one still runs", st("a", running()), st("b", waiting()), v1.PodPending},
		{"one has succeeded, and one will never run", st("a", ended(0)), st("b", waiting()), v1.PodFailed},
	} {
		t.Run("without a sandbox for ever: "+tt.name, func(t *testing.T) {
			s := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{tt.a, tt.b}}
			if got := Phase(p, s, PhaseFacts{HasInitialized: true, EndsWithSandbox: true}); got != tt.want {
				t.Errorf("phase is %s, want %s", got, tt.want)
			}
		})
	}
}

// A pod whose containers have ended for good loses its sandbox, and with it the init containers
// that were to run again in a new one.
func TestPhaseWithInitContainersThatNeverRun(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy:  v1.RestartPolicyOnFailure,
		InitContainers: []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}},
		Containers:     []v1.Container{{Name: "app"}},
	}}
	s := &v1.PodStatus{
		InitContainerStatuses: []v1.ContainerStatus{st("init", waiting()), st("side", waiting())},
		ContainerStatuses:     []v1.ContainerStatus{st("app", ended(0))},
	}
	if got := Phase(p, s, PhaseFacts{}); got != v1.PodPending {
		t.Errorf("with a sandbox the phase is %s, want Pending", got)
	}
	if got := Phase(p, s, PhaseFacts{EndsWithSandbox: true}); got != v1.PodSucceeded {
		t.Errorf("without one for ever the phase is %s, want Succeeded", got)
	}
	s.InitContainerStatuses[1] = st("side", running())
	if got := Phase(p, s, PhaseFacts{EndsWithSandbox: true}); got != v1.PodRunning {
		t.Errorf("while the sidecar is being ended the phase is %s, want Running", got)
	}
}

func TestPhaseOfStoppedStaticPod(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "app"}}}}
	s := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{st("app", ended(0))}}
	facts := PhaseFacts{Terminal: true, HasInitialized: true}
	if got := Phase(p, s, facts); got != v1.PodSucceeded {
		t.Errorf("phase of an API pod is %s, want Succeeded", got)
	}
	p.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.FileSource)}
	if got := Phase(p, s, facts); got != v1.PodRunning {
		t.Errorf("phase of a static pod is %s, want Running", got)
	}
}
