package nodeshutdown

import (
	"cmp"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/config"
)

// criticalPriority is that of the pods for which shutdownGracePeriodCriticalPods is
// (system-cluster-critical).
const criticalPriority = 2_000_000_000

// Group is the pods of a priority, and above it up to that of the next group, that end together.
type Group struct {
	Priority int32
	// Seconds is how long they have for it.
	Seconds int64
}

// limit is how long the group is waited for.
func (g Group) limit() time.Duration {
	return time.Duration(min(g.Seconds, math.MaxInt64/int64(time.Second))) * time.Second
}

// Groups returns what a valid configuration says, by priority; none if a shutdown is to wait for no
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

// totalDelay is how long all groups take at most.
func totalDelay(groups []Group) time.Duration {
	var sum int64
	for _, g := range groups {
		sum += min(g.Seconds, math.MaxInt64-sum)
	}
	return Group{Seconds: sum}.limit()
}

// groupPods returns the pods of each group. groups are sorted and at least one.
func groupPods(groups []Group, pods []*v1.Pod) [][]*v1.Pod {
	out := make([][]*v1.Pod, len(groups))
	for _, p := range pods {
		var priority int32
		if p.Spec.Priority != nil {
			priority = *p.Spec.Priority
		}
		at, exact := slices.BinarySearchFunc(groups, priority, func(g Group, p int32) int { return cmp.Compare(g.Priority, p) })
		if !exact {
			at = max(at-1, 0) // below the lowest is the lowest
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
