package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// conditionWords are the reasons, messages and event reasons of a condition by its status.
type conditionWords struct {
	reason, message map[v1.ConditionStatus]string
	event           map[v1.ConditionStatus]string
}

// words has the agent's conditions. The message of a Ready condition that is not true is the list
// of problems.
var words = map[v1.NodeConditionType]conditionWords{
	v1.NodeMemoryPressure: {
		reason: map[v1.ConditionStatus]string{v1.ConditionTrue: "KubeletHasInsufficientMemory", v1.ConditionFalse: "KubeletHasSufficientMemory"},
		message: map[v1.ConditionStatus]string{
			v1.ConditionTrue: "kubelet has insufficient memory available", v1.ConditionFalse: "kubelet has sufficient memory available",
		},
		event: map[v1.ConditionStatus]string{v1.ConditionTrue: "NodeHasInsufficientMemory", v1.ConditionFalse: "NodeHasSufficientMemory"},
	},
	v1.NodeDiskPressure: {
		reason: map[v1.ConditionStatus]string{v1.ConditionTrue: "KubeletHasDiskPressure", v1.ConditionFalse: "KubeletHasNoDiskPressure"},
		message: map[v1.ConditionStatus]string{
			v1.ConditionTrue: "kubelet has disk pressure", v1.ConditionFalse: "kubelet has no disk pressure",
		},
		event: map[v1.ConditionStatus]string{v1.ConditionTrue: "NodeHasDiskPressure", v1.ConditionFalse: "NodeHasNoDiskPressure"},
	},
	v1.NodePIDPressure: {
		reason: map[v1.ConditionStatus]string{v1.ConditionTrue: "KubeletHasInsufficientPID", v1.ConditionFalse: "KubeletHasSufficientPID"},
		message: map[v1.ConditionStatus]string{
			v1.ConditionTrue: "kubelet has insufficient PID available", v1.ConditionFalse: "kubelet has sufficient PID available",
		},
		event: map[v1.ConditionStatus]string{v1.ConditionTrue: "NodeHasInsufficientPID", v1.ConditionFalse: "NodeHasSufficientPID"},
	},
	v1.NodeReady: {
		reason:  map[v1.ConditionStatus]string{v1.ConditionTrue: "KubeletReady", v1.ConditionFalse: "KubeletNotReady"},
		message: map[v1.ConditionStatus]string{v1.ConditionTrue: "kubelet is posting ready status"},
		event:   map[v1.ConditionStatus]string{v1.ConditionTrue: "NodeReady", v1.ConditionFalse: "NodeNotReady"},
	},
}

// generateConditions returns the agent's conditions without times. Ready comes last: a reader that
// has read Ready has read the others.
func generateConditions(s *Settings, f *Facts, capacity v1.ResourceList) []v1.NodeCondition {
	ready := newCondition(v1.NodeReady, v1.ConditionTrue)
	if err := notReady(s, f, capacity); err != nil {
		ready = newCondition(v1.NodeReady, v1.ConditionFalse)
		ready.Message = err.Error()
	}
	return []v1.NodeCondition{
		newCondition(v1.NodeMemoryPressure, f.Pressure.status(func(p Pressure) bool { return p.Memory })),
		newCondition(v1.NodeDiskPressure, f.Pressure.status(func(p Pressure) bool { return p.Disk })),
		newCondition(v1.NodePIDPressure, f.Pressure.status(func(p Pressure) bool { return p.PID })),
		ready,
	}
}

func (p Pressure) status(of func(Pressure) bool) v1.ConditionStatus {
	if of(p) {
		return v1.ConditionTrue
	}
	return v1.ConditionFalse
}

func newCondition(kind v1.NodeConditionType, status v1.ConditionStatus) v1.NodeCondition {
	w := words[kind]
	return v1.NodeCondition{Type: kind, Status: status, Reason: w.reason[status], Message: w.message[status]}
}

// notReady returns all reasons why the node is not ready as one error, or nil.
func notReady(s *Settings, f *Facts, capacity v1.ResourceList) error {
	errs := slices.Clone(f.Problems)
	if missing := missingCapacity(s, capacity); len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing node capacity for resources: %s", strings.Join(missing, ", ")))
	}
	if all := utilerrors.NewAggregate(errs); all != nil {
		return all
	}
	return nil
}

// mergeCondition replaces or appends a condition. Its transition time is that of the last change of
// its status.
func mergeCondition(conditions []v1.NodeCondition, c v1.NodeCondition, now time.Time) []v1.NodeCondition {
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	i := slices.IndexFunc(conditions, func(old v1.NodeCondition) bool { return old.Type == c.Type })
	if i < 0 {
		return append(conditions, c)
	}
	if conditions[i].Status == c.Status {
		c.LastTransitionTime = conditions[i].LastTransitionTime
	}
	conditions[i] = c
	return conditions
}

// flips returns the event reasons of the conditions whose status differs between two statuses. A
// node that was never ready does not become not ready.
func flips(old, new []v1.NodeCondition) []string {
	was := map[v1.NodeConditionType]v1.ConditionStatus{v1.NodeReady: v1.ConditionFalse}
	for _, c := range old {
		was[c.Type] = c.Status
	}
	var out []string
	for _, c := range new {
		if reason := words[c.Type].event[c.Status]; reason != "" && was[c.Type] != c.Status {
			out = append(out, reason)
		}
	}
	return out
}

func isReady(conditions []v1.NodeCondition) bool {
	return slices.ContainsFunc(conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}
