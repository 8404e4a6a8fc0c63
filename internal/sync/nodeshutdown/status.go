package nodeshutdown

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod/lifecycle"
)

const message = "Pod was terminated in response to imminent node shutdown."

// finalStatus returns the update of the pod's status to its final one.
func finalStatus(p *v1.Pod) func(*v1.PodStatus) {
	condition := v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
		Reason: v1.PodReasonTerminationByKubelet, Message: message,
	}
	return func(s *v1.PodStatus) {
		if s.Phase != v1.PodSucceeded {
			s.Phase = v1.PodFailed
		}
		s.Reason, s.Message = lifecycle.Terminated, message
		for i := range s.Conditions {
			if s.Conditions[i].Type == condition.Type {
				s.Conditions[i] = condition
				return
			}
		}
		s.Conditions = append(s.Conditions, condition)
	}
}
