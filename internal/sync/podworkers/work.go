package podworkers

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/status"
	"berth/internal/pod"
)

// SyncPodType is the type of an update.
type SyncPodType int

// The types of updates.
const (
	SyncPodSync      SyncPodType = iota // reconcile again
	SyncPodUpdate                       // the pod's spec changed
	SyncPodCreate                       // the pod is new
	SyncPodKill                         // the pod must terminate
	SyncPodReconcile                    // the API server's copy of the status changed
)

func (t SyncPodType) String() string {
	return [...]string{"sync", "update", "create", "kill", "reconcile"}[t]
}

// PodStatusFunc changes the final status of a killed pod (its reason and message).
type PodStatusFunc func(*v1.PodStatus)

// KillPodOptions sets how a pod terminates.
type KillPodOptions struct {
	// Evict marks the pod as evicted: its containers and logs are removed once it has terminated.
	Evict Eviction
	// PodTerminationGracePeriodSecondsOverride replaces the pod's own grace period; it can only
	// shorten one that has begun.
	PodTerminationGracePeriodSecondsOverride *int64
	// Why is the journal's reason if the pod is not evicted; "": no source has the pod.
	Why string
	// PodStatusFunc is applied to the final status; the last one given wins.
	PodStatusFunc PodStatusFunc
	// CompletedCh is closed when all containers have terminated.
	CompletedCh chan<- struct{}
}

// Eviction reports whether a kill is an eviction.
type Eviction int

// The values of Eviction.
const (
	NotEvicted Eviction = iota
	Evicted
)

// UpdatePodOptions is one update of one pod.
type UpdatePodOptions struct {
	UpdateType SyncPodType
	// Pod is the pod's newest spec. It is shared and must not be changed.
	Pod *v1.Pod
	// RunningPod replaces Pod for a pod that exists only in the runtime or on disk; such a pod can
	// only be killed.
	RunningPod *pod.Status
	// KillPodOptions of a SyncPodKill; nil means the pod's own grace period.
	KillPodOptions *KillPodOptions
	// Wanted reports whether the pod's source still has it. An unwanted pod is killed and removed
	// completely.
	Wanted Wanted
}

// Wanted reports whether a pod's source has it.
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

// asEviction turns the first update of a pod into the continuation of an eviction that an earlier
// agent began, with its grace period in seconds.
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

// work merges all updates since the worker's last iteration: newest pod, shortest grace period,
// last status function, all completion channels.
type work struct {
	pod         *v1.Pod     // nil for a pod that exists only in the runtime
	running     *pod.Status // set if pod is nil
	grace       int64       // seconds; 0 until termination is requested
	statusFunc  PodStatusFunc
	completions []chan<- struct{}
	again       bool // another pod with this UID follows this one, which terminates
}

// isEcho reports whether an update only returns what the agent itself wrote: a status that differs
// from the worker's copy only in fields that the agent owns. No pass is needed for it.
func isEcho(w work, o *UpdatePodOptions) bool {
	return o.UpdateType == SyncPodReconcile && w.pod != nil && !status.DiffersForeign(&w.pod.Status, &o.Pod.Status)
}

// mergeWork merges an update into the work. It reports whether the grace period became shorter than
// the current one.
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

func nextLifecycle(l pod.Lifecycle, o *UpdatePodOptions) pod.Lifecycle {
	p := o.Pod
	// Stays set when a manifest brings the pod back: the remains are terminated, and the pod starts
	// from scratch.
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

// orphaned returns the lifecycle of a pod that no source has.
func orphaned(l pod.Lifecycle) pod.Lifecycle {
	l.Orphan, l.Deleted, l.State = true, true, max(l.State, Terminating)
	return l
}

// whyUnwanted returns the journal's reason for the termination of an undesired pod; p is nil if it
// never had a source.
func whyUnwanted(p *v1.Pod) string {
	switch {
	case p == nil:
		return "no manifest and no API server has it here"
	case pod.IsStatic(p):
		return "its manifest is gone"
	}
	return "the API server has it no more, or has it elsewhere"
}

// whyEnd returns the journal's reason for a termination by an update.
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

// Terminating and the others alias the states of package pod.
const (
	Waiting     = pod.Waiting
	Syncing     = pod.Syncing
	Terminating = pod.Terminating
	Terminated  = pod.Terminated
	Finished    = pod.Finished
)

// errorBackOff is the delay before a failed pass is retried, if the failure sets none.
const errorBackOff = 10 * time.Second

// removalBackOffCap is the maximum delay between attempts to remove a terminated pod; the delay
// doubles from errorBackOff.
const removalBackOffCap = 5 * time.Minute
