package kuberuntime

import (
	"slices"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
)

// isResized reports whether a resize of the pod is in progress.
func (in *planInput) isResized() bool { return in.Actuated != nil && in.Actuated != in.Pod }

// planResize adds the steps of a resize besides container restarts. A restart of all containers
// takes precedence.
func (a *podActions) planResize(in planInput) {
	if !in.isResized() || !in.ResizeHeld.IsZero() || len(a.RestartAll) > 0 {
		return
	}
	a.Resize = true
	if a.KillPod {
		return
	}
	for i := range in.Observed.Containers {
		cs := &in.Observed.Containers[i]
		c := findSpec(in.Pod, cs.Name)
		killed := slices.ContainsFunc(a.Kill, func(k killAction) bool { return k.ID == cs.ID })
		if c != nil && cs.State == pod.StateRunning && !killed && cs == in.Observed.FindContainer(cs.Name) && (in.ResizeAnew || changesLimits(in, c)) {
			a.ResizeInPlace = append(a.ResizeInPlace, resizeAction{cs.ID, cs.Name})
		}
	}
}

// resizeRestarts reports whether the running container must be restarted to get its allocated
// resources.
func resizeRestarts(in planInput, c *v1.Container) bool {
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy == v1.RestartContainer && changes(in, c, p.ResourceName) {
			return true
		}
	}
	return false
}

// changes reports whether the container's actuated request or limit of the resource differs from
// the allocated one.
func changes(in planInput, c *v1.Container, name v1.ResourceName) bool {
	if !in.isResized() {
		return false
	}
	was := findSpec(in.Actuated, c.Name)
	differ := func(a, b v1.ResourceList) bool {
		x, y := a[name], b[name]
		return x.Cmp(y) != 0
	}
	return was != nil && (differ(was.Resources.Requests, c.Resources.Requests) || differ(was.Resources.Limits, c.Resources.Limits))
}

// changesLimits reports whether the container's limits in the runtime change.
func changesLimits(in planInput, c *v1.Container) bool {
	was := findSpec(in.Actuated, c.Name)
	return was != nil && !proto.Equal(crispec.ContainerResources(in.Actuated, was, in.Resources), crispec.ContainerResources(in.Pod, c, in.Resources))
}
