package nodeshutdown

import (
	"cmp"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/config"
)

// criticalPriority is the lowest priority to which shutdownGracePeriodCriticalPods applies
// (system-cluster-critical).
const criticalPriority = 2_000_000_000

// Group is the set of pods that terminate together: those with at least this priority and below
// that of the next group.
type Group struct {
	Priority int32
	// Seconds is the time that the group has to terminate.
	Seconds int64
}

// limit returns the time that the group has.
func (g Group) limit() time.Duration {
	return time.Duration(min(g.Seconds, math.MaxInt64/int64(time.Second))) * time.Second
}

// Groups returns the groups of a valid configuration, by priority; none if a shutdown waits for no
// pod.
func Groups(k *config.KubeletConfiguration) []Group {
	var out []Group
	for _, e := range k.ShutdownGracePeriodByPodPriority {
		out = append(out, Group{e.Priority, e.ShutdownGracePeriodSeconds})
	}
	if out == nil {
		total, critical := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration
		out = []Group{{0, int64((total - critical) / time.Second)}, {criticalPriority, int64(critical / time.Second)}}
	}
	if totalDelay(out) == 0 {
		return nil
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}

// totalDelay returns the maximum time of all groups together.
func totalDelay(groups []Group) time.Duration {
	var sum int64
	for _, g := range groups {
		sum += min(g.Seconds, math.MaxInt64-sum)
	}
	return Group{Seconds: sum}.limit()
}

// groupPods returns the pods of each group. groups is sorted and not empty.
func groupPods(groups []Group, pods []*v1.Pod) [][]*v1.Pod {
	out := make([][]*v1.Pod, len(groups))
	for _, p := range pods {
		var priority int32
		if p.Spec.Priority != nil {
			priority = *p.Spec.Priority
		}
		at, exact := slices.BinarySearchFunc(groups, priority, func(g Group, p int32) int { return cmp.Compare(g.Priority, p) })
		if !exact {
			at = max(at-1, 0) // pods below the lowest group belong to it
		}
		out[at] = append(out[at], p)
	}
	return out
}

// computeGrace returns the grace period of a pod of the group, in seconds.
func computeGrace(g Group, p *v1.Pod) int64 {
	if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(*own, g.Seconds)
	}
	return g.Seconds
}
