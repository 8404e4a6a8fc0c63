package admission

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

// pendingResize is a resize request that was not granted or not decided yet.
type pendingResize struct {
	pod   *v1.Pod   // with the resources of its spec
	since time.Time // time of the first request for more than the allocation
	// decided: the request was decided since the last change, which was the trigger.
	decided bool
	trigger Trigger
	// deferred: the last decision was to defer it.
	deferred bool
}

// Trigger is why a deferred resize is reconsidered.
type Trigger string

// The triggers.
const (
	PodsRemoved Trigger = "pods_removed" // a pod has terminated
	PodResized  Trigger = "pod_resized"  // another pod was downsized
	PodUpdated  Trigger = "pod_updated"  // the pod's request changed
	NodeChanged Trigger = "node_changed" // the node may have changed
)

// Resize returns the pod with its current allocation. If its spec requests other resources, Resize
// first grants, defers or rejects them. Deferred requests are reconsidered when capacity was freed.
// It does not block.
func (c *Chain) Resize(p *v1.Pod) *v1.Pod {
	c.deciding.Lock()
	w, waits := c.pending[p.UID]
	switch {
	case !c.cfg.Allocations.IsWanted(p):
		delete(c.pending, p.UID)
		c.cfg.Allocations.Refuse(p.UID, nil)
	case waits && w.decided && allocation.SameRequest(w.pod, p):
		w.pod = p
	case waits:
		if !allocation.SameRequest(w.pod, p) {
			c.warnUndeclared(c.cfg.Allocations.Apply(p), p)
		}
		w.pod, w.decided, w.trigger = p, false, PodUpdated
	default:
		c.warnUndeclared(c.cfg.Allocations.Apply(p), p)
		c.pending[p.UID] = &pendingResize{pod: p, since: time.Now()}
	}
	var woken []pod.UID
	if len(c.pending) > 0 {
		woken = c.grantLocked()
	}
	out := c.cfg.Allocations.Apply(p)
	c.deciding.Unlock()
	c.wake(woken, p.UID)
	return out
}

// Allocated returns the terminating pod with its allocation, which no longer changes.
func (c *Chain) Allocated(p *v1.Pod) *v1.Pod {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	delete(c.pending, p.UID)
	c.cfg.Allocations.Refuse(p.UID, nil)
	return c.cfg.Allocations.Apply(p)
}

// RetryPending reconsiders all deferred resizes after a pod has terminated. It does not block.
func (c *Chain) RetryPending() { c.reconsider(PodsRemoved) }

// NodeChanged reconsiders all deferred resizes after a possible change of the node. It does not
// block.
func (c *Chain) NodeChanged() { c.reconsider(NodeChanged) }

func (c *Chain) reconsider(why Trigger) {
	c.deciding.Lock()
	for _, w := range c.pending {
		w.decided, w.trigger = false, why
	}
	woken := c.grantLocked()
	c.deciding.Unlock()
	c.wake(woken, "")
}

// wake wakes the workers of the pods, except the caller's.
func (c *Chain) wake(uids []pod.UID, but pod.UID) {
	for _, uid := range uids {
		if uid != but {
			c.cfg.Wake(uid)
		}
	}
}

// grantLocked decides the undecided requests in order. It returns the pods whose result changed.
func (c *Chain) grantLocked() (woken []pod.UID) {
	select {
	case <-c.cfg.Ready:
	default:
		return nil // the running pods are unknown; RetryPending is called once they are known
	}
	if c.preemptionInProgress() != nil {
		return nil // the capacity is reserved; RetryPending follows when a victim has terminated
	}
	for again := true; again; {
		again = false
		for _, w := range c.rankPendingLocked() {
			if w.decided {
				continue
			}
			w.decided = true
			uid := w.pod.UID
			shrinks := !increases(c.cfg.Allocations.Apply(w.pod), w.pod)
			granted, changed := c.decide(w.pod)
			if changed {
				woken = append(woken, uid)
			}
			if !granted {
				w.deferred = c.cfg.Allocations.IsDeferred(uid)
				continue
			}
			delete(c.pending, uid)
			if w.deferred {
				c.metrics.deferredAccepted.WithLabelValues(string(w.trigger)).Inc()
			}
			if shrinks { // this frees capacity for others
				for _, o := range c.pending {
					o.decided, o.trigger, again = false, PodResized, true
				}
				break
			}
		}
	}
	return woken
}

// decide grants or refuses a resize; changed reports whether the answer changed.
func (c *Chain) decide(p *v1.Pod) (granted, changed bool) {
	refuse := func(reason, why, message string) (bool, bool) {
		changed := c.cfg.Allocations.Refuse(p.UID, &allocation.Pending{Reason: reason, Message: message, Generation: p.Generation})
		if changed {
			c.cfg.Event(p, "", v1.EventTypeWarning, "Resize"+reason, fmt.Sprintf("Pod resize %s: %s", why, allocation.Summary(p, message)))
			c.note(p, "resize "+reason, message, nil)
		}
		return false, changed
	}
	facts := c.cfg.Facts()
	given := c.cfg.Allocations.Apply(p)
	if message := infeasible(given, p, facts); message != "" {
		return refuse(v1.PodReasonInfeasible, v1.PodReasonInfeasible, message)
	}
	if r := judge(c.cfg.Handlers, c.attributesLocked(p)); r != nil {
		return refuse(v1.PodReasonDeferred, r.Reason, r.Message)
	}
	c.cfg.Allocations.Grant(p)
	c.cfg.Event(p, "", v1.EventTypeNormal, "ResizeStarted", "Pod resize started: "+allocation.Summary(p, ""))
	c.note(p, "resize granted", allocation.Summary(p, ""), nil)
	return true, true
}

// rankPendingLocked returns the requests in the order of decision: those without an increase first,
// then by priority, QoS class and age.
func (c *Chain) rankPendingLocked() []*pendingResize {
	all := make([]*pendingResize, 0, len(c.pending))
	for _, w := range c.pending {
		all = append(all, w)
	}
	increase := func(w *pendingResize) int {
		if increases(c.cfg.Allocations.Apply(w.pod), w.pod) {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b *pendingResize) int {
		return cmp.Or(
			cmp.Compare(increase(a), increase(b)),
			cmp.Compare(priorityOf(b.pod), priorityOf(a.pod)),
			cmp.Compare(classRank(a.pod), classRank(b.pod)),
			a.since.Compare(b.since),
			cmp.Compare(a.pod.UID, b.pod.UID),
		)
	})
	return all
}

func classRank(p *v1.Pod) int {
	return slices.Index([]v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}, cgroups.QOSClass(p))
}

// increases reports whether the pod requests more of any resource than its allocation.
func increases(given, wanted *v1.Pod) bool {
	has := requestsOf(given)
	for name, n := range requestsOf(wanted) {
		if n > has[name] {
			return true
		}
	}
	return false
}

// infeasible returns why this node can never resize the pod in this way; "" if it can.
func infeasible(given, wanted *v1.Pod, f Facts) string {
	if pod.IsStatic(wanted) {
		return "In-place resize of static-pods is not supported"
	}
	if cgroups.QOSClass(given) != cgroups.QOSClass(wanted) {
		return fmt.Sprintf("Pod QOS Class may not change as a result of resizing: it is %s and would be %s", cgroups.QOSClass(given), cgroups.QOSClass(wanted))
	}
	if f.PodLevelResizeOff && !equality.Semantic.DeepEqual(given.Spec.Resources, wanted.Spec.Resources) {
		return "In-place resize of resources at pod level is not supported: the feature gate InPlacePodLevelResourcesVerticalScaling is off"
	}
	if cgroups.QOSClass(given) == v1.PodQOSGuaranteed {
		if f.OwnCPUs && differs(given, wanted, v1.ResourceCPU) {
			return "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy"
		}
		if f.OwnMemory && differs(given, wanted, v1.ResourceMemory) {
			return "Resize is infeasible for Guaranteed Pods alongside Memory Manager static policy"
		}
	}
	if f.LimitedSwap && swaps(given, wanted) {
		return "In-place resize of containers with swap is not supported."
	}
	return ""
}

// differs reports whether a container's request of the resource changes.
func differs(given, wanted *v1.Pod, name v1.ResourceName) bool {
	for _, lists := range [][2][]v1.Container{{given.Spec.InitContainers, wanted.Spec.InitContainers}, {given.Spec.Containers, wanted.Spec.Containers}} {
		for i := range min(len(lists[0]), len(lists[1])) {
			was, is := lists[0][i].Resources.Requests[name], lists[1][i].Resources.Requests[name]
			if was.Cmp(is) != 0 {
				return true
			}
		}
	}
	return false
}

// swaps reports whether a running container that may use swap in proportion to its memory request
// (KEP-2400) would change that request without a restart.
func swaps(given, wanted *v1.Pod) bool {
	if cgroups.QOSClass(given) != v1.PodQOSBurstable || pod.IsCritical(given) {
		return false
	}
	for _, lists := range [][2][]v1.Container{{given.Spec.InitContainers, wanted.Spec.InitContainers}, {given.Spec.Containers, wanted.Spec.Containers}} {
		for i := range min(len(lists[0]), len(lists[1])) {
			was, is := &lists[0][i], &lists[1][i]
			request, limit := was.Resources.Requests[v1.ResourceMemory], was.Resources.Limits[v1.ResourceMemory]
			requested := is.Resources.Requests[v1.ResourceMemory]
			restarts := slices.ContainsFunc(is.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
				return p.ResourceName == v1.ResourceMemory && p.RestartPolicy == v1.RestartContainer
			})
			if !restarts && !request.IsZero() && request.Cmp(limit) != 0 && request.Cmp(requested) != 0 {
				return true
			}
		}
	}
	return false
}
