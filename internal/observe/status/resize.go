package status

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

// resizeConditions returns the conditions of an in-place resize (KEP-1287); each has the generation
// of its spec.
func resizeConditions(r allocation.Resize) []v1.PodCondition {
	var out []v1.PodCondition
	if p := r.Pending; p != nil {
		out = append(out, v1.PodCondition{
			Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: p.Reason, Message: p.Message, ObservedGeneration: p.Generation,
		})
	}
	if r.InProgress {
		c := v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue, ObservedGeneration: r.Generation}
		if r.Error != "" {
			c.Reason, c.Message = v1.PodReasonError, r.Error
		}
		out = append(out, c)
	}
	return out
}

// setPodResources sets the pod-level allocated and actual resources.
func setPodResources(s *v1.PodStatus, in Input) {
	given, holds := in.Pod.Spec.Resources, in.Pod.Spec.Resources
	if in.Actuated != nil {
		holds = in.Actuated.Spec.Resources
	}
	if given != nil {
		s.AllocatedResources = given.Requests.DeepCopy()
		s.Resources = holds.DeepCopy()
	}
}

// fillResources sets the container's allocated and actual resources: equal, unless it runs while
// the pod is being resized.
func (b *containerBuilder) fillResources(cs *v1.ContainerStatus) {
	cs.AllocatedResources, cs.Resources = nil, nil
	given, has := &b.spec.Resources, &b.spec.Resources
	if b.in.Actuated != nil && b.newest != nil && b.newest.State == pod.StateRunning {
		if c := pod.FindContainer(&b.in.Actuated.Spec, b.spec.Name); c != nil {
			has = &c.Resources
		}
	}
	if len(given.Requests) > 0 {
		cs.AllocatedResources = given.Requests.DeepCopy()
	}
	if len(has.Requests) > 0 || len(has.Limits) > 0 {
		cs.Resources = has.DeepCopy()
	}
}
