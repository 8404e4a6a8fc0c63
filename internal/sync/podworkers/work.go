package podworkers

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/status"
	"berth/internal/pod"
)

// SyncPodType is what an update asks of a worker.
type SyncPodType int

// The kinds of updates.
const (
	SyncPodSync      SyncPodType = iota // reconcile again
	SyncPodUpdate                       // the pod's spec changed
	SyncPodCreate                       // the pod is new
	SyncPodKill                         // the pod must end
	SyncPodReconcile                    // the API server's copy of the status changed
)

func (t SyncPodType) String() string {
	return [...]string{"sync", "update", "create", "kill", "reconcile"}[t]
}

// PodStatusFunc changes the status that a killed pod ends with (its reason and message).
type PodStatusFunc func(*v1.PodStatus)

// KillPodOptions says how a pod is to end.
type KillPodOptions struct {
	// Evict marks the pod evicted: its content goes as soon as it has ended.
	Evict Eviction
	// PodTerminationGracePeriodSecondsOverride replaces the pod's own grace period; it can only
	// shorten one that runs already.
	PodTerminationGracePeriodSecondsOverride *int64
	// Why says in the journal why the pod ends, if it is not evicted; "": no source has it.
	Why string
	// PodStatusFunc is applied to the final status; the last one given wins.
	PodStatusFunc PodStatusFunc
	// CompletedCh is closed when all containers have ended.
	CompletedCh chan<- struct{}
}

// Eviction says whether a kill is an eviction.
type Eviction int

// The values of Eviction.
const (
	NotEvicted Eviction = iota
	Evicted
)

// UpdatePodOptions is one update of one pod.
type UpdatePodOptions struct {
	UpdateType SyncPodType
	// Pod is the pod's newest spec. It is shared and must not be changed by anybody.
	Pod *v1.Pod
	// RunningPod is given instead of Pod for what only the runtime, or the disk, still knows; it
	// can only be killed.
	RunningPod *pod.Status
	// KillPodOptions of a SyncPodKill; nil means the pod's own grace period.
	KillPodOptions *KillPodOptions
	// Wanted says whether the pod's source still has it. A pod that it has no more is killed, and
	// nothing of it stays.
	Wanted Wanted
}

// Wanted says whether a pod's source has it.
type Wanted int

// The values of Wanted.
const (
	StillWanted Wanted = iota
	Unwanted
)

func (o *UpdatePodOptions) uid() pod.UID {
	if o.Pod != nil {
		return o.Pod.UID
	}
	return o.RunningPod.UID
}

// asEviction returns the first update about a pod that an earlier agent has begun to evict, with a
// grace period of so many seconds: that goes on.
func (o *UpdatePodOptions) asEviction(grace int64) *UpdatePodOptions {
	on := *o
	var k KillPodOptions
	if o.KillPodOptions != nil {
		k = *o.KillPodOptions
	}
	k.Evict = Evicted
	if own := k.PodTerminationGracePeriodSecondsOverride; own == nil || *own > grace {
		k.PodTerminationGracePeriodSecondsOverride = &grace
	}
	on.UpdateType, on.KillPodOptions = SyncPodKill, &k
	return &on
}

// work is what a worker has to do, joined from all updates since its last turn: newest pod,
// smallest grace, last status function, all completion channels.
type work struct {
	pod         *v1.Pod     // nil for a pod that only the runtime knows
	running     *pod.Status // set then
	grace       int64       // seconds; 0 until termination is requested
	statusFunc  PodStatusFunc
	completions []chan<- struct{}
	again       bool // another pod of the UID is to follow this one, which ends
}

// isEcho reports whether an update brings back only what the agent itself has written: a status
// that differs from the one that the worker has in the agent's own part. A pass has nothing to do
// for it.
func isEcho(w work, o *UpdatePodOptions) bool {
	return o.UpdateType == SyncPodReconcile && w.pod != nil && !status.DiffersForeign(&w.pod.Status, &o.Pod.Status)
}

// mergeWork joins an update into the work and says whether the grace period became shorter than the
// one under way.
func mergeWork(w work, o *UpdatePodOptions, l pod.Lifecycle) (_ work, shortened bool) {
	w.again = w.again && o.Wanted == StillWanted
	if o.Pod != nil {
		w.pod, w.running = o.Pod, nil
	} else if w.pod == nil {
		w.running = o.RunningPod
	}
	if k := o.KillPodOptions; k != nil && l.State >= Terminating {
		if k.PodStatusFunc != nil {
			w.statusFunc = k.PodStatusFunc
		}
		if k.CompletedCh != nil {
			w.completions = append(w.completions, k.CompletedCh)
		}
	}
	if l.State != Terminating {
		return w, false
	}
	old := w.grace
	w.grace = computeGrace(w, o.KillPodOptions)
	return w, old != 0 && w.grace < old
}

// computeGrace returns the effective grace period in seconds. It can only shrink, and is at least
// one.
func computeGrace(w work, k *KillPodOptions) int64 {
	grace := w.grace
	replaced := false
	shrink := func(s *int64) {
		if s != nil && (grace == 0 || *s < grace) {
			grace, replaced = *s, true
		}
	}
	if w.pod != nil {
		shrink(w.pod.DeletionGracePeriodSeconds)
	}
	if k != nil {
		shrink(k.PodTerminationGracePeriodSecondsOverride)
	}
	if grace == 0 && !replaced && w.pod != nil && w.pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	return max(grace, 1)
}

// nextLifecycle is the effect of an update on the lifecycle: whether it asks for the pod's end, and
// marks what it says about why.
func nextLifecycle(l pod.Lifecycle, o *UpdatePodOptions) pod.Lifecycle {
	p := o.Pod
	// It stays so when a manifest brings the pod back: what is left of it ends, and the pod starts
	// afresh.
	l.RuntimeOnly = l.RuntimeOnly || p == nil && l.State == Waiting
	l.Deleted = l.Deleted || l.RuntimeOnly
	end := o.UpdateType == SyncPodKill
	if o.Wanted == Unwanted {
		l.Orphan, l.Deleted = true, true
	}
	if p != nil && p.DeletionTimestamp != nil {
		l.Deleted, end = true, true
	}
	if p != nil && pod.IsTerminal(p.Status.Phase) {
		end = true
	}
	if end && o.KillPodOptions != nil && o.KillPodOptions.Evict == Evicted {
		l.Evicted = true
	}
	if end && l.State < Terminating {
		l.State = Terminating
	}
	return l
}

// orphaned is the effect on the lifecycle of that no source has the pod any more.
func orphaned(l pod.Lifecycle) pod.Lifecycle {
	l.Orphan, l.Deleted, l.State = true, true, max(l.State, Terminating)
	return l
}

// whyUnwanted says for the journal why a pod ends that no source has any more; p is nil for one of
// which no source was known.
func whyUnwanted(p *v1.Pod) string {
	switch {
	case p == nil:
		return "no manifest and no API server has it here"
	case pod.IsStatic(p):
		return "its manifest is gone"
	}
	return "the API server has it no more, or has it elsewhere"
}

// whyEnd says for the journal why an update ends the pod.
func whyEnd(o *UpdatePodOptions) string {
	switch p := o.Pod; {
	case p == nil:
		return "something of it is left on the node, and " + whyUnwanted(nil)
	case p.DeletionTimestamp != nil:
		return "its deletion was asked for"
	case o.KillPodOptions != nil && o.KillPodOptions.Evict == Evicted:
		return "it is evicted"
	case o.KillPodOptions != nil && o.KillPodOptions.Why != "":
		return o.KillPodOptions.Why
	case o.UpdateType == SyncPodKill:
		return whyUnwanted(p)
	default:
		return "its phase is " + string(p.Status.Phase)
	}
}

// Terminating and the others are the states of pod.State, under the names that read well here.
const (
	Waiting     = pod.Waiting
	Syncing     = pod.Syncing
	Terminating = pod.Terminating
	Terminated  = pod.Terminated
	Finished    = pod.Finished
)

// errorBackOff spaces the tries of a pass that failed without saying when to try again.
const errorBackOff = 10 * time.Second

// removalBackOffCap is the longest time between two tries to remove what is left of an ended pod:
// from errorBackOff on they are twice as far apart each time.
const removalBackOffCap = 5 * time.Minute
