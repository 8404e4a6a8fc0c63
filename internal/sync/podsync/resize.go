package podsync

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/allocation"
)

// resizeRetry is the time until a failed resize is retried, regardless of other events.
const resizeRetry = 10 * time.Second

// resizeFailed records why the pod's resize failed, with an event for the first failure. It returns
// whether the failure is to be reported.
func (p *syncPass) resizeFailed() bool {
	failed := p.synced.ResizeError
	if failed == nil {
		return false
	}
	if p.syncer.Allocations.Failed(p.Pod, failed.Error(), time.Now().Add(resizeRetry)) {
		p.syncer.Event(p.Pod, "", v1.EventTypeWarning, "ResizeError", "Pod resize error: "+allocation.Summary(p.Pod, failed.Error()))
	}
	return true
}

// reportResized records an event for a completed resize, also for one that an earlier agent
// completed without an event.
func (s *Syncer) reportResized(p *v1.Pod, before, now []v1.PodCondition) {
	inProgress := func(c v1.PodCondition) bool { return c.Type == v1.PodResizeInProgress && c.Status == v1.ConditionTrue }
	if slices.ContainsFunc(before, inProgress) && !slices.ContainsFunc(now, inProgress) && !s.Allocations.Resize(p.UID).InProgress {
		s.Event(p, "", v1.EventTypeNormal, "ResizeCompleted", "Pod resize completed: "+allocation.Summary(p, ""))
	}
}
