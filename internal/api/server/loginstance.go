package server

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// Incarnation selects the run of a container whose log is read.
type Incarnation int

const (
	// Current is the running container, or the last run.
	Current Incarnation = iota
	// Previous is the run before the current one (kubectl logs --previous).
	Previous
)

// logInstance returns the incarnation of the container whose log is read, from the pod's status.
// kubectl shows the errors to users.
func logInstance(p *v1.Pod, container string, which Incarnation) (pod.ContainerID, error) {
	st := containerStatus(p, container)
	if st == nil {
		return "", fmt.Errorf("container %q in pod %q is waiting to start: not yet known to the runtime", container, p.Name)
	}
	last := st.LastTerminationState.Terminated
	if which == Previous {
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", container, p.Name)
		}
		return bareID(last.ContainerID), nil
	}
	switch {
	case st.State.Running != nil && st.ContainerID != "":
		return bareID(st.ContainerID), nil
	case st.State.Terminated != nil && st.State.Terminated.ContainerID != "":
		return bareID(st.State.Terminated.ContainerID), nil
	case last != nil && last.ContainerID != "":
		// Between two runs (CrashLoopBackOff) the last one shows the cause.
		return bareID(last.ContainerID), nil
	case st.State.Waiting != nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", container, p.Name, waitingFor(st.State.Waiting))
	default:
		return "", fmt.Errorf("container %q in pod %q has no logs: it never ran", container, p.Name)
	}
}

// failedToStart reports whether this incarnation of the container never ran, from the pod's status.
func failedToStart(p *v1.Pod, container string, id pod.ContainerID) bool {
	st := containerStatus(p, container)
	return st != nil && slices.ContainsFunc([]*v1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated}, func(t *v1.ContainerStateTerminated) bool {
		return t != nil && t.Reason == startError && bareID(t.ContainerID) == id
	})
}

// startError is the runtimes' reason for a container that was created and failed to start.
const startError = "StartError"

// waitingFor describes why a container waits. The two texts for image pulls are the kubelet's.
func waitingFor(w *v1.ContainerStateWaiting) string {
	switch w.Reason {
	case lifecycle.ErrImagePull:
		return "image can't be pulled"
	case lifecycle.ImagePullBackOff:
		return "trying and failing to pull image"
	default:
		return w.Reason
	}
}

// hasContainer reports whether the pod's spec has a container of any kind with this name.
func hasContainer(p *v1.Pod, name string) bool {
	hasName := func(c v1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(p.Spec.Containers, hasName) || slices.ContainsFunc(p.Spec.InitContainers, hasName) ||
		slices.ContainsFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// containerStatus returns the status of the named container of any kind, or nil.
func containerStatus(p *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// bareID removes the scheme of an ID: "containerd://0a1b" is 0a1b.
func bareID(id string) pod.ContainerID {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		id = bare
	}
	return pod.ContainerID(id)
}

// isRunning reports whether this incarnation of the container is running, from the pod's status.
func isRunning(p *v1.Pod, container string, id pod.ContainerID) bool {
	st := containerStatus(p, container)
	return st != nil && st.State.Running != nil && bareID(st.ContainerID) == id
}
