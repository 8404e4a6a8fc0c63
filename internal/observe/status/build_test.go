package status

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/events/messagestest"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) metav1.Time {
	return metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second))
}

func containers(names ...string) []v1.Container {
	var out []v1.Container
	for _, n := range names {
		out = append(out, v1.Container{Name: n, Image: n + ":v1"})
	}
	return out
}

func sidecar(name string) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	return v1.Container{Name: name, Image: name + ":v1", RestartPolicy: &always}
}

// newPod returns a pod of generation 4 with one regular container named app.
func newPod(change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1", Generation: 4},
		Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: containers("app")},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func withInit(c ...v1.Container) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.InitContainers = c }
}

func withPolicy(r v1.RestartPolicy) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.RestartPolicy = r }
}

func deleted(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: epoch} }

func static(p *v1.Pod) {
	p.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.FileSource)}
}

// observed returns an observation with a usable sandbox and the containers, newest first.
func observed(list ...pod.ContainerStatus) pod.Status {
	return pod.Status{
		UID: "u1", Name: "web", Namespace: "default", IPs: []string{"10.0.0.2"},
		Sandboxes:  []pod.SandboxStatus{{ID: "s1", Ready: true, IPs: []string{"10.0.0.2"}}},
		Containers: list,
	}
}

// seen returns incarnation n of the container, whose id is <name>-<n>.
func seen(name string, n uint32, state pod.ContainerState) pod.ContainerStatus {
	cs := pod.ContainerStatus{
		ID: id(name, n), SandboxID: "s1", Name: name, State: state, Attempt: n,
		CreatedAt: at(int(n) * 100).Time, Image: name + ":v1", ImageRef: "sha256:" + name,
	}
	if state != pod.StateCreated {
		cs.StartedAt = at(int(n)*100 + 1).Time
	}
	return cs
}

func seenExited(name string, n uint32, code int32) pod.ContainerStatus {
	cs := seen(name, n, pod.StateExited)
	cs.FinishedAt, cs.ExitCode, cs.Reason = at(int(n)*100+50).Time, code, lifecycle.Completed
	if code != 0 {
		cs.Reason = lifecycle.Error
	}
	return cs
}

func id(name string, n uint32) pod.ContainerID {
	return pod.ContainerID(name + "-" + string(rune('0'+n)))
}

func apiID(name string, n uint32) string { return "containerd://" + string(id(name, n)) }

func waitingFor(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

func runningSince(n uint32) v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at(int(n)*100 + 1)}}
}

// endOf is the terminated state of seenExited.
func endOf(name string, n uint32, code int32) v1.ContainerState {
	cs := seenExited(name, n, code)
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		ExitCode: code, Reason: cs.Reason, StartedAt: metav1.NewTime(cs.StartedAt), FinishedAt: metav1.NewTime(cs.FinishedAt),
		ContainerID: apiID(name, n),
	}}
}

func generate(p *v1.Pod, o pod.Status, change ...func(*Input)) v1.PodStatus {
	in := Input{Pod: p, Observed: o, RuntimeName: "containerd", Now: epoch}
	for _, c := range change {
		c(&in)
	}
	out := Generate(in)
	messagestest.SawStatus(&out)
	return out
}

func after(old v1.PodStatus) func(*Input) { return func(in *Input) { in.Old = old } }

func terminal(in *Input) { in.Terminal = true }

func startError(name, reason, message string) func(*Input) {
	return func(in *Input) {
		if in.StartErrors == nil {
			in.StartErrors = map[string]lifecycle.StartError{}
		}
		in.StartErrors[name] = lifecycle.StartError{Reason: reason, Message: message}
	}
}

// passed are the verdicts on incarnations that have passed a probe.
func passed(ids ...pod.ContainerID) map[pod.ContainerID]pod.ProbeVerdict {
	out := map[pod.ContainerID]pod.ProbeVerdict{}
	for _, id := range ids {
		out[id] = pod.ProbeSuccess
	}
	return out
}

func probes(ready, started []pod.ContainerID) func(*Input) {
	return func(in *Input) {
		in.Probes = pod.ProbeVerdicts{Readiness: passed(ready...), Startup: passed(started...)}
	}
}

func condition(s v1.PodStatus, t v1.PodConditionType) v1.PodCondition {
	if c := findCondition(s.Conditions, t); c != nil {
		return *c
	}
	return v1.PodCondition{}
}
