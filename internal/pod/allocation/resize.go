package allocation

import (
	"context"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Resize is the progress of an in-place resize of a pod (KEP-1287).
type Resize struct {
	// Pending is why the resize of the pod's spec was not granted; nil if it was, or if it is not
	// decided yet.
	Pending *Pending
	// InProgress: the allocation is not fully actuated; Generation is that of the spec that
	// requested it.
	InProgress bool
	Generation int64
	// Superseded: it replaced an incomplete resize, some values of which may be actuated.
	Superseded bool
	// Error is why the last attempt to actuate the allocation failed; "" if it did not. The next
	// attempt is at RetryAt.
	Error   string
	RetryAt time.Time
}

// Pending is a resize that was not granted.
type Pending struct {
	// Reason is v1.PodReasonDeferred, which is retried, or v1.PodReasonInfeasible.
	Reason  string
	Message string
	// Generation is that of the refused spec.
	Generation int64
}

// IsWanted reports whether the pod's spec requests other resources than its allocation.
func (a *Allocations) IsWanted(p *v1.Pod) bool { return a.Apply(p) != p }

// SameRequest reports whether two versions of a pod request the same resources.
func SameRequest(p, q *v1.Pod) bool {
	r := resourcesOf(p)
	return p.Generation == q.Generation && apply(&r, q) == q
}

// Grant allocates the resources of the pod's spec. The previous allocation stays the actuated one
// until Complete. Call Persist before actuating the new one.
func (a *Allocations) Grant(p *v1.Pod) {
	a.mu.Lock()
	old, known := a.pods[p.UID]
	r := record{resources: resourcesOf(p), Generation: p.Generation, Actuated: old.Actuated, Cgroup: old.Cgroup, Admitted: old.Admitted, current: true}
	if r.Superseded = r.Actuated != nil; known && !r.Superseded {
		r.Actuated, r.Cgroup = &old.resources, &old.resources
	}
	a.pods[p.UID] = r
	delete(a.resizes, p.UID)
	a.unsaved.Put(p.UID)
	a.changed.Publish(p.UID)
	a.mu.Unlock()
}

// Persist returns when all grants and completions were written to the file, or the write failed:
// after that, the next agent can continue the resize. It returns early when ctx is done, and needs
// Run.
func (a *Allocations) Persist(ctx context.Context) {
	if a.cfg.File != "" {
		a.file.Writer.Flush(ctx)
	}
}

// IsDeferred reports whether the pod's resize is deferred.
func (a *Allocations) IsDeferred(uid pod.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.resizes[uid].Pending
	return p != nil && p.Reason == v1.PodReasonDeferred
}

// Refuse stores why the pod's resize is not granted; nil clears it. It reports whether that is a
// change.
func (a *Allocations) Refuse(uid pod.UID, why *Pending) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.resizes[uid]
	changed = (s.Pending == nil) != (why == nil) || why != nil && *s.Pending != *why
	s.Pending = why
	a.setLocked(uid, s)
	return changed
}

// Failed stores that the allocation that Apply returned could not be actuated, and when that is
// retried. It reports whether this is the first failure. A failure for an older allocation is
// ignored.
func (a *Allocations) Failed(p *v1.Pod, message string, retryAt time.Time) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.isGivenLocked(p) {
		return false
	}
	s := a.resizes[p.UID]
	first = s.Error == ""
	s.Error, s.RetryAt = message, retryAt
	a.setLocked(p.UID, s)
	return first
}

// isGivenLocked reports whether the pod, as returned by Apply, has its current allocation: another
// resize may have been granted since.
func (a *Allocations) isGivenLocked(p *v1.Pod) bool {
	r, known := a.pods[p.UID]
	return known && apply(&r.resources, p) == p
}

func (a *Allocations) setLocked(uid pod.UID, s Resize) {
	if s == (Resize{}) {
		delete(a.resizes, uid)
		return
	}
	a.resizes[uid] = s
}

// Resize returns the progress of the pod's resize; the zero value if there is none.
func (a *Allocations) Resize(uid pod.UID) Resize {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, r := a.resizes[uid], a.pods[uid]
	s.InProgress, s.Generation, s.Superseded = r.Actuated != nil, r.Generation, r.Superseded
	return s
}

// Actuated returns the pod, as returned by Apply, with its actuated resources; p itself if no
// resize is in progress, or if one was granted since Apply: that is for the next call. Otherwise
// the result is never p.
func (a *Allocations) Actuated(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.isGivenLocked(p) {
		return p
	}
	return applyToCopy(a.pods[p.UID].Actuated, p)
}

// Cgroup returns the pod, as returned by Apply, with the resources of its cgroup.
func (a *Allocations) Cgroup(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return applyToCopy(a.pods[p.UID].Cgroup, p)
}

func applyToCopy(r *resources, p *v1.Pod) *v1.Pod {
	if r == nil {
		return p
	}
	if q := apply(r, p); q != p {
		return q
	}
	q := *p
	return &q
}

// Actuate records that containers run with the allocation of the pod, as returned by Apply. It
// matters during a resize: they must not be restarted for it again. It is persisted when Actuate
// returns, for later agents.
func (a *Allocations) Actuate(ctx context.Context, p *v1.Pod, containers ...string) {
	a.mu.Lock()
	r := a.pods[p.UID]
	inProgress := r.Actuated != nil
	if inProgress {
		now, given := *r.Actuated, resourcesOf(p)
		now.Containers = maps.Clone(now.Containers)
		for _, name := range containers {
			now.Containers[name] = given.Containers[name]
		}
		r.Actuated = &now
		a.pods[p.UID] = r
		a.unsaved.Put(p.UID)
	}
	a.mu.Unlock()
	if inProgress {
		a.Persist(ctx)
	}
}

// Complete records that the allocation of the pod, as returned by Apply, is fully actuated; it does
// nothing if another one was granted since. It is persisted when Complete returns, so that no later
// agent restarts a container for the same resize.
func (a *Allocations) Complete(ctx context.Context, p *v1.Pod) {
	a.mu.Lock()
	if !a.isGivenLocked(p) {
		a.mu.Unlock()
		return
	}
	r := a.pods[p.UID]
	r.Actuated, r.Cgroup, r.Superseded = nil, nil, false
	a.pods[p.UID] = r
	s := a.resizes[p.UID]
	s.Error, s.RetryAt = "", time.Time{}
	a.setLocked(p.UID, s)
	a.unsaved.Put(p.UID)
	a.mu.Unlock()
	a.Persist(ctx)
}
