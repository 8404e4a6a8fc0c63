package eviction

import (
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// podView has the pods that both loops may evict.
type podView struct {
	list       func() []*v1.Pod
	allocated  func(p *v1.Pod) *v1.Pod
	lifecycle  func(uid pod.UID) (pod.Lifecycle, bool)
	ended      func(uid pod.UID) bool
	isCritical func(p *v1.Pod) bool

	mu sync.Mutex
	// shortened are evicted pods whose grace period is at most that of a hard threshold; guarded by
	// mu.
	shortened map[pod.UID]bool
}

// isLeaving reports whether the pod is evicted or has terminated, and is not cleaned up yet.
func (v *podView) isLeaving(uid pod.UID) bool {
	at, known := v.lifecycle(uid)
	return (known && at.Evicted || v.ended(uid)) && at.State != pod.Finished
}

// mayEvict reports whether containers of the pod may run, and it is not leaving yet.
func (v *podView) mayEvict(uid pod.UID) bool {
	l, ok := v.lifecycle(uid)
	return ok && !v.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// stillRuns reports whether the pod is leaving, and containers of it may run.
func (v *podView) stillRuns(uid pod.UID) bool {
	l, ok := v.lifecycle(uid)
	return ok && v.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// isAsRanked reports whether the pod's state is the same as in candidates.
func (v *podView) isAsRanked(c *candidate) bool {
	if c.leaving {
		return v.stillRuns(c.pod.UID)
	}
	return v.mayEvict(c.pod.UID)
}

// candidates returns the pods that may be evicted for the threshold, and evicted pods that still
// run. A hard threshold cuts the grace period of the latter, once. waitingSince is since when the
// loop waits for leaving pods.
func (v *podView) candidates(t *Threshold, waitingSince map[pod.UID]time.Time) []candidate {
	var out []candidate
	shortened := v.stillShortened()
	for _, p := range v.list() {
		c := newCandidate(v.allocated(p), t.Signal.resource())
		c.wanted, c.critical, c.leaving = p, v.isCritical(p), v.stillRuns(p.UID)
		switch {
		case c.leaving:
			c.ending = !t.isHard() || shortened[p.UID]
			if since, ok := waitingSince[p.UID]; ok && c.ending && time.Since(since) >= patience {
				continue
			}
		case !v.mayEvict(p.UID):
			continue
		}
		out = append(out, c)
	}
	return out
}

// setShortened marks the pod as limited to the grace period of a hard threshold.
func (v *podView) setShortened(uid pod.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shortened[uid] = true
}

// stillShortened returns the marked pods whose containers may run, and drops the others.
func (v *podView) stillShortened() map[pod.UID]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.shortened, func(uid pod.UID, _ bool) bool { return !v.stillRuns(uid) })
	return maps.Clone(v.shortened)
}
