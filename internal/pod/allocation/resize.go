package allocation

import (
	"context"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Resize is how far a resize of a pod in place has come (KEP-1287).
type Resize struct {
	// Pending is why the pod has not been given what its spec asks for; nil if it has, or if it is
	// not decided yet.
	Pending *Pending
	// InProgress: the pod was given other resources than those that hold; Generation is that of the
	// spec that asked for them.
	InProgress bool
	Generation int64
	// Superseded: it took the place of another resize that was not complete, of which some values
	// may hold.
	Superseded bool
	// Error is why the last try to let them hold failed; "" if it did not. The next comes at
	// RetryAt.
	Error   string
	RetryAt time.Time
}

// Pending is a resize that was not granted.
type Pending struct {
	// Reason is v1.PodReasonDeferred, which is tried again, or v1.PodReasonInfeasible.
	Reason  string
	Message string
	// Generation is that of the spec that was refused.
	Generation int64
}

// IsWanted reports whether the pod's spec asks for other resources than the pod was given.
func (a *Allocations) IsWanted(p *v1.Pod) bool { return a.Apply(p) != p }

// SameWish reports whether two versions of a pod ask for the same resources.
func SameWish(p, q *v1.Pod) bool {
	r := resourcesOf(p)
	return p.Generation == q.Generation && r.apply(q) == q
}

// Grant gives the pod the resources of its spec. What held until now is what is actuated, until
// Complete. Keep is to be called before anything is done about it.
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

// Persist returns when what was granted and what is complete was written to the file, or could not
// be: an agent that is killed after that has a successor that goes on where it was. It returns
// early when ctx is done, and needs Run.
func (a *Allocations) Persist(ctx context.Context) {
	if a.cfg.File != "" {
		a.file.Flush(ctx)
	}
}

// IsDeferred reports whether the pod was refused what its spec asks for, for now.
func (a *Allocations) IsDeferred(uid pod.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.resizes[uid].Pending
	return p != nil && p.Reason == v1.PodReasonDeferred
}

// Refuse notes why the pod does not get what its spec asks for; nil takes that back. It reports
// whether that is news.
func (a *Allocations) Refuse(uid pod.UID, why *Pending) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.resizes[uid]
	news = (s.Pending == nil) != (why == nil) || why != nil && *s.Pending != *why
	s.Pending = why
	a.setLocked(uid, s)
	return news
}

// Failed notes that what the pod was given, as Apply returned it, could not be made to hold, and
// when that is tried again. It reports whether the try before had not failed. A try for what the
// pod was given before is of no interest any more.
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

// isGivenLocked reports whether the pod, as Apply returned it, has what it is given now: another
// resize may have been granted since.
func (a *Allocations) isGivenLocked(p *v1.Pod) bool {
	r, known := a.pods[p.UID]
	return known && r.apply(p) == p
}

func (a *Allocations) setLocked(uid pod.UID, s Resize) {
	if s == (Resize{}) {
		delete(a.resizes, uid)
		return
	}
	a.resizes[uid] = s
}

// Resize returns how far a resize of the pod has come; the zero value is that of a pod that is not
// being resized.
func (a *Allocations) Resize(uid pod.UID) Resize {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, r := a.resizes[uid], a.pods[uid]
	s.InProgress, s.Generation, s.Superseded = r.Actuated != nil, r.Generation, r.Superseded
	return s
}

// Actuated returns the pod, as Apply returned it, with the resources that its containers have; p
// itself if no resize of it is under way, or if one was granted since Apply: that is for who looks
// next. Else it is never p.
func (a *Allocations) Actuated(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.isGivenLocked(p) {
		return p
	}
	return a.pods[p.UID].Actuated.applyToCopy(p)
}

// Cgroup returns the pod, as Apply returned it, with the resources that its cgroup was made for.
func (a *Allocations) Cgroup(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[p.UID].Cgroup.applyToCopy(p)
}

func (r *resources) applyToCopy(p *v1.Pod) *v1.Pod {
	if r == nil {
		return p
	}
	if q := r.apply(p); q != p {
		return q
	}
	q := *p
	return &q
}

// Actuate notes that containers run with what the pod, as Apply returned it, was given. It matters
// while a resize of the pod is under way: they are not to be restarted for it once more. It is kept
// when Actuate returns, so by no later agent either.
func (a *Allocations) Actuate(ctx context.Context, p *v1.Pod, containers ...string) {
	a.mu.Lock()
	r := a.pods[p.UID]
	underWay := r.Actuated != nil
	if underWay {
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
	if underWay {
		a.Persist(ctx)
	}
}

// Complete notes that all that the pod, as Apply returned it, was given holds; if it was given
// something else since, that is still to come. It is kept when Complete returns, so that no later
// agent restarts a container for the same resize once more.
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
