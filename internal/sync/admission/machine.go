package admission

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// nodeConditions rejects pods while the node is under pressure, so that they are not evicted at
// once. Critical pods are always admitted. If only memory is short, pods that request some are
// admitted, and pods that tolerate the taint.
func nodeConditions(a Attributes) *Rejection {
	if len(a.Facts.Pressure) == 0 || pod.IsCritical(a.Pod) {
		return nil
	}
	if slices.Equal(a.Facts.Pressure, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
		if cgroups.QOSClass(a.Pod) != v1.PodQOSBestEffort {
			return nil
		}
		taint := v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if tolerates(a.Pod, taint) {
			return nil
		}
	}
	return &Rejection{Reason: lifecycle.Evicted, Message: fmt.Sprintf("The node had condition: %v. ", a.Facts.Pressure)}
}

// nodeShutdown rejects every pod while the machine is about to shut down.
func nodeShutdown(a Attributes) *Rejection {
	if !a.Facts.ShuttingDown {
		return nil
	}
	return &Rejection{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
}

func podLevelResources(a Attributes) *Rejection {
	if !a.Facts.PodLevelResourcesOff || a.Pod.Spec.Resources == nil {
		return nil
	}
	return &Rejection{
		Reason:  "PodLevelResourcesNotSupported",
		Message: "The pod sets spec.resources, and the feature gate PodLevelResources is off on this node: set the resources of containers, or turn the gate on.",
	}
}

func tolerates(p *v1.Pod, taints ...v1.Taint) bool {
	_, untolerated := corev1.FindMatchingUntoleratedTaint(klog.Background(), taints, p.Spec.Tolerations, nil, compareTolerations)
	return !untolerated
}

// compareTolerations is the feature gate TaintTolerationComparisonOperators, which is alpha and
// off.
const compareTolerations = false
