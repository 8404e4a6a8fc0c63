package oom

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// Recorder records events of pods and of the node.
type Recorder interface {
	Event(p *v1.Pod, container, eventtype, reason, message string)
	NodeEvent(eventtype, reason, message string)
}

// Events reports kills as events.
type Events struct {
	Recorder Recorder
	// Pod returns the desired pod, or its last version.
	Pod func(uid pod.UID) (*v1.Pod, bool)
	// Refresh schedules a read of the pod: the runtime's status of it may have changed.
	Refresh func(uid pod.UID)
}

// Killed records a kill in a container. It is an event even if the container keeps running: a
// parent may survive its child.
func (e Events) Killed(k Kill) {
	p, ok := e.Pod(k.UID)
	if !ok { // a restarted agent may get kills before pods
		p = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: k.UID, Namespace: k.Namespace, Name: k.Name}}
	}
	k.Of = limitedBy(k.Of, &p.Spec)
	e.Recorder.Event(p, k.Container, v1.EventTypeWarning, "OOMKilled", k.Message())
	e.Refresh(k.UID)
}

// limitedBy returns the scope of the limit as the user set it: the cgroup of a pod without its own
// limit has the sum of its containers' limits, and contains the sandbox as well.
func limitedBy(of Scope, spec *v1.PodSpec) Scope {
	limited := 0
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if !c.Resources.Limits.Memory().IsZero() {
			limited++
		}
	}
	switch {
	case of != Pod || limited == 0:
		return of
	case spec.Resources != nil && !spec.Resources.Limits.Memory().IsZero():
		return Pod
	case len(spec.InitContainers)+len(spec.Containers) == 1:
		return Container
	}
	return Containers
}

// SystemOOM records that the node ran out of memory.
func (e Events) SystemOOM(process string, pid int) {
	message := "System OOM encountered"
	if process != "" && pid != 0 {
		message = fmt.Sprintf("%s, victim process: %s, pid: %d", message, process, pid)
	}
	e.Recorder.NodeEvent(v1.EventTypeWarning, "SystemOOM", message)
}

// Message describes what was killed, and by which limit.
func (k Kill) Message() string {
	what := "a process"
	switch {
	case k.Process != "":
		what = fmt.Sprintf("process %s (pid %d)", k.Process, k.PID)
	case k.Count > 1:
		what = fmt.Sprintf("%d processes", k.Count)
	}
	in := "of container " + k.Container
	if k.Container == "" {
		in = "of the pod's sandbox"
	}
	why := ""
	switch k.Of {
	case Node:
		return fmt.Sprintf("the kernel killed %s %s: the node had no memory left", what, in)
	case Pod:
		why = "the memory limit of the pod was reached"
	case Containers:
		why = "the memory limits of the pod's containers together were reached"
	case Above:
		why = "the memory limit of all pods, or of those of its class, was reached"
	default:
		why = "the memory limit of the container was reached"
		if k.Process == "" && k.Limit == 0 {
			why = "a memory limit was reached"
		}
	}
	numbers := ""
	switch {
	case k.Limit == 0:
	case k.Process != "":
		numbers = fmt.Sprintf(" (%s used of %s)", quantity(k.Used), quantity(k.Limit))
	default:
		numbers = fmt.Sprintf(" (at most %s used of %s)", quantity(k.Used), quantity(k.Limit))
	}
	return fmt.Sprintf("the kernel killed %s %s: %s%s", what, in, why, numbers)
}

// quantity formats bytes as manifests do: 16Mi.
func quantity(n uint64) string {
	return resource.NewQuantity(int64(min(n, 1<<62)), resource.BinarySI).String()
}
