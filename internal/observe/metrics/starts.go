package metrics

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

type span struct{ from, to time.Time }

// computeExcluded returns the total time until a pod ran in which images were pulled or init
// containers ran; overlaps count once (Kubernetes community, "Pod startup latency SLI").
func computeExcluded(p *v1.Pod, s *journal.Timeline, within span) time.Duration {
	var all []span
	for i := range s.Entries {
		if e := &s.Entries[i]; e.Component == "image" && e.Error == "" {
			all = append(all, span{e.Time.Add(-e.Took), e.Time})
		}
	}
	for i := range s.Ends {
		e := &s.Ends[i]
		if slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == e.Container }) {
			all = append(all, span{e.Started, e.Finished})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	var sum time.Duration
	at := within.from
	for _, x := range all {
		if x.from.Before(at) {
			x.from = at
		}
		if x.to.After(within.to) {
			x.to = within.to
		}
		if x.to.After(x.from) {
			sum += x.to.Sub(x.from)
			at = x.to
		}
	}
	return sum
}

// podRuns counts the first run of a pod, measured from its creation.
func (p *Pods) podRuns(x *v1.Pod) {
	if x.CreationTimestamp.IsZero() {
		return
	}
	now := time.Now()
	total := max(0, now.Sub(x.CreationTimestamp.Time))
	p.counts.startTotal.Observe(total.Seconds())
	timeline, _ := p.Timeline(x.UID)
	sli := total - computeExcluded(x, &timeline, span{x.CreationTimestamp.Time, now})
	p.counts.startSLI.Observe(sli.Seconds())
	if !x.Spec.HostNetwork && !p.networked {
		p.networked = true
		p.counts.firstNetworkSLI.Set(sli.Seconds())
	}
}
