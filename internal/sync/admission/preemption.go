package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// preemptingMessage is the status message of a preempted pod.
const preemptingMessage = "Preempted in order to admit critical pod"

// preemptedStatus returns the update of a preempted pod's status.
func preemptedStatus(p *v1.Pod) func(*v1.PodStatus) {
	generation := p.Generation
	return func(s *v1.PodStatus) {
		s.Phase, s.Reason, s.Message = v1.PodFailed, lifecycle.Preempting, preemptingMessage
		condition := v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(time.Now()),
			Reason: v1.PodReasonTerminationByKubelet, Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
		}
		i := slices.IndexFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == condition.Type })
		switch {
		case i < 0:
			s.Conditions = append(s.Conditions, condition)
		case s.Conditions[i].Status == condition.Status:
			condition.LastTransitionTime = s.Conditions[i].LastTransitionTime
			s.Conditions[i] = condition
		default:
			s.Conditions[i] = condition
		}
	}
}

// candidate is a pod that may be preempted, with its requests.
type candidate struct {
	pod      *v1.Pod
	requests amounts
}

// rankVictims returns the pods to preempt so that the preemptor lacks nothing, as few as possible
// of each class. Guaranteed pods are chosen only if all others are not enough, and burstable pods
// only if best-effort pods are not enough. The error is that all pods are not enough.
func rankVictims(preemptor *v1.Pod, pods []*v1.Pod, shortages []shortage) ([]*v1.Pod, error) {
	need := amounts{}
	for _, s := range shortages {
		need[s.resource] = s.missing()
	}
	classes := map[v1.PodQOSClass][]candidate{}
	var all []candidate
	for _, p := range pods {
		if isPreemptable(preemptor, p) {
			c := candidate{p, requestsOf(p)}
			class := cgroups.QOSClass(p)
			classes[class], all = append(classes[class], c), append(all, c)
		}
	}
	if left := need.without(all); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %s", left)
	}
	bestEffort, burstable := classes[v1.PodQOSBestEffort], classes[v1.PodQOSBurstable]
	guaranteedVictims := pickFew(classes[v1.PodQOSGuaranteed], need.without(bestEffort, burstable))
	burstableVictims := pickFew(burstable, need.without(bestEffort, guaranteedVictims))
	bestEffortVictims := pickFew(bestEffort, need.without(burstableVictims, guaranteedVictims))
	var out []*v1.Pod
	for _, c := range slices.Concat(bestEffortVictims, burstableVictims, guaranteedVictims) {
		out = append(out, c.pod)
	}
	return out, nil
}

// isPreemptable reports whether the pod may be preempted for the preemptor (Kubernetes
// documentation, "Guaranteed Scheduling For Critical Add-On Pods").
func isPreemptable(preemptor, p *v1.Pod) bool {
	return pod.IsCritical(preemptor) && !pod.IsCritical(p) || priorityOf(preemptor) > priorityOf(p)
}

func priorityOf(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// pickFew returns pods that together meet the need, which they can. It repeatedly picks the pod
// that leaves the least need; among equals, the one with the lower memory request, then CPU
// request.
func pickFew(from []candidate, need amounts) []candidate {
	from = slices.Clone(from)
	var picked []candidate
	for len(need) > 0 && len(from) > 0 {
		best := 0
		for i := 1; i < len(from); i++ {
			if compareVictims(from[i], from[best], need) < 0 {
				best = i
			}
		}
		picked = append(picked, from[best])
		need = need.without(from[best : best+1])
		from = slices.Delete(from, best, best+1)
	}
	return picked
}

// compareVictims is negative if a is the better victim.
func compareVictims(a, b candidate, need amounts) int {
	return cmp.Or(
		cmp.Compare(need.distance(a.requests), need.distance(b.requests)),
		cmp.Compare(a.requests[v1.ResourceMemory], b.requests[v1.ResourceMemory]),
		cmp.Compare(a.requests[v1.ResourceCPU], b.requests[v1.ResourceCPU]),
	)
}

// distance returns the remaining need: the sum of squares of the remaining fractions.
func (a amounts) distance(given amounts) float64 {
	var sum float64
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if left := a[name] - given[name]; left > 0 {
			part := float64(left) / float64(a[name])
			sum += part * part
		}
	}
	return sum
}

// without returns the remaining need after the pods are removed, without resources that are met.
func (a amounts) without(gone ...[]candidate) amounts {
	left := maps.Clone(a)
	for _, list := range gone {
		for _, c := range list {
			for name := range left {
				left[name] -= c.requests[name]
			}
		}
	}
	maps.DeleteFunc(left, func(_ v1.ResourceName, n int64) bool { return n <= 0 })
	return left
}

// String lists the amounts by name.
func (a amounts) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, a[name]))
	}
	return strings.Join(parts, ", ")
}
