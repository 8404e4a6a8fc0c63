package oom

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
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
	// Pod returns the pod as it is wanted, or was last.
	Pod func(uid pod.UID) (*v1.Pod, bool)
	// Refresh has the pod read again: what the runtime says of it may have changed.
	Refresh func(uid pod.UID)
}

// Killed records a kill in a container. It is an event of its own even when the container goes on:
// a parent may survive its child.
func (e Events) Killed(k Kill) {
	p, ok := e.Pod(k.UID)
	if !ok { // an agent that comes back hears of kills before it hears of pods
		p = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: k.UID, Namespace: k.Namespace, Name: k.Name}}
	}
	e.Recorder.Event(p, k.Container, v1.EventTypeWarning, "OOMKilled", k.Message())
	e.Refresh(k.UID)
}

// SystemOOM records that the node had no memory left.
func (e Events) SystemOOM(process string, pid int) {
	message := "System OOM encountered"
	if process != "" && pid != 0 {
		message = fmt.Sprintf("%s, victim process: %s, pid: %d", message, process, pid)
	}
	e.Recorder.NodeEvent(v1.EventTypeWarning, "SystemOOM", message)
}
