package podsync

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/allocation"
	"berth/internal/kuberuntime"
)

// resizeRetry is the time until a resize that failed is tried again, whatever happens to the pod meanwhile.
const resizeRetry = 10 * time.Second

// resizeFailed keeps why the pod's resize is not done, and tells of the first failure; it reports whether that is to be shown.
func (s *Syncer) resizeFailed(r Request, done kuberuntime.Result) bool {
	if done.ResizeError == nil {
		return false
	}
	if s.Allocations.Failed(r.Pod, done.ResizeError.Error(), time.Now().Add(resizeRetry)) {
		s.Event(r.Pod, "", v1.EventTypeWarning, "ResizeError", "Pod resize error: "+allocation.Summary(r.Pod, done.ResizeError.Error()))
	}
	return true
}

// tellResized tells of the end of a resize, also of one that an earlier agent has brought to its end and did not tell of.
func (s *Syncer) tellResized(p *v1.Pod, before, now []v1.PodCondition) {
	inProgress := func(c v1.PodCondition) bool { return c.Type == v1.PodResizeInProgress && c.Status == v1.ConditionTrue }
	if slices.ContainsFunc(before, inProgress) && !slices.ContainsFunc(now, inProgress) && !s.Allocations.Resize(p.UID).InProgress {
		s.Event(p, "", v1.EventTypeNormal, "ResizeCompleted", "Pod resize completed: "+allocation.Summary(p, ""))
	}
}
