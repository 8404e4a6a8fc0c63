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

// resizeWish is a resize that was not granted, or not decided yet.
type resizeWish struct {
	pod   *v1.Pod   // as its spec has it
	since time.Time // when it first asked for more than it got
	// decided: the wish was judged since something changed, which was the trigger.
	decided bool
	trigger Trigger
	// deferred: it was refused for now.
	deferred bool
}

// Trigger is why a resize that was deferred is decided anew.
type Trigger string

// The triggers.
const (
	PodsRemoved Trigger = "pods_removed" // a pod has ended
	PodResized  Trigger = "pod_resized"  // another pod gave something back
	PodUpdated  Trigger = "pod_updated"  // the pod asks for something else
	NodeChanged Trigger = "node_changed" // the node has become another
)

// Resize returns the pod with the resources that it is to have now. If its spec asks for others
// than it was given, that is decided here: it is given them, or it is told why not. What is
// deferred is decided again when room was made. It does not block.
func (c *Chain) Resize(p *v1.Pod) *v1.Pod {
	c.deciding.Lock()
	w, waits := c.wishes[p.UID]
	switch {
	case !c.cfg.Allocations.IsWanted(p):
		delete(c.wishes, p.UID)
		c.cfg.Allocations.Refuse(p.UID, nil)
	case waits && w.decided && allocation.SameWish(w.pod, p):
		w.pod = p
	case waits:
		if !allocation.SameWish(w.pod, p) {
			c.warnUndeclared(c.cfg.Allocations.Apply(p), p)
		}
		w.pod, w.decided, w.trigger = p, false, PodUpdated
	default:
		c.warnUndeclared(c.cfg.Allocations.Apply(p), p)
		c.wishes[p.UID] = &resizeWish{pod: p, since: time.Now()}
	}
	var woken []pod.UID
	if len(c.wishes) > 0 {
		woken = c.grantLocked()
	}
	out := c.cfg.Allocations.Apply(p)
	c.deciding.Unlock()
	c.wake(woken, p.UID)
	return out
}

// Allocated returns the pod, which is to end, with the resources that it was given. It is not given
// others any more.
func (c *Chain) Allocated(p *v1.Pod) *v1.Pod {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	delete(c.wishes, p.UID)
	c.cfg.Allocations.Refuse(p.UID, nil)
	return c.cfg.Allocations.Apply(p)
}

// RetryPending decides anew about all resizes that are deferred, because a pod has ended. It does
// not block.
func (c *Chain) RetryPending() { c.decideAnew(PodsRemoved) }

// NodeChanged decides anew about all resizes that are deferred, because the node may have become
// another. It does not block.
func (c *Chain) NodeChanged() { c.decideAnew(NodeChanged) }

func (c *Chain) decideAnew(why Trigger) {
	c.deciding.Lock()
	for _, w := range c.wishes {
		w.decided, w.trigger = false, why
	}
	woken := c.grantLocked()
	c.deciding.Unlock()
	c.wake(woken, "")
}

// wake lets the workers look at their pods, but for the one that asks.
func (c *Chain) wake(uids []pod.UID, but pod.UID) {
	for _, uid := range uids {
		if uid != but {
			c.cfg.Wake(uid)
		}
	}
}

// grantLocked decides about the wishes that are to be decided, in order. It returns the pods for
// which that made a difference.
func (c *Chain) grantLocked() (woken []pod.UID) {
	select {
	case <-c.cfg.Ready:
	default:
		return nil // it is not known what runs; RetryPending is called when it is
	}
	if c.preemptionUnderWay() != nil {
		return nil // that is for the pod that it is made for; and then one has ended
	}
	for again := true; again; {
		again = false
		for _, w := range c.rankWishesLocked() {
			if w.decided {
				continue
			}
			w.decided = true
			uid := w.pod.UID
			shrinks := !increases(c.cfg.Allocations.Apply(w.pod), w.pod)
			granted, news := c.decide(w.pod)
			if news {
				woken = append(woken, uid)
			}
			if !granted {
				w.deferred = c.cfg.Allocations.IsDeferred(uid)
				continue
			}
			delete(c.wishes, uid)
			if w.deferred {
				c.metrics.deferredAccepted.WithLabelValues(string(w.trigger)).Inc()
			}
			if shrinks { // which is room for others
				for _, o := range c.wishes {
					o.decided, o.trigger, again = false, PodResized, true
				}
				break
			}
		}
	}
	return woken
}

// decide grants a resize or says why not; news is whether that is another answer than before.
func (c *Chain) decide(p *v1.Pod) (granted, news bool) {
	refuse := func(reason, why, message string) (bool, bool) {
		news := c.cfg.Allocations.Refuse(p.UID, &allocation.Pending{Reason: reason, Message: message, Generation: p.Generation})
		if news {
			c.cfg.Event(p, "", v1.EventTypeWarning, "Resize"+reason, fmt.Sprintf("Pod resize %s: %s", why, allocation.Summary(p, message)))
			c.note(p, "resize "+reason, message, nil)
		}
		return false, news
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

// rankWishesLocked returns the wishes in the order in which they are decided: those that take
// nothing first, then by priority, by class, and by how long they wait.
func (c *Chain) rankWishesLocked() []*resizeWish {
	wishes := make([]*resizeWish, 0, len(c.wishes))
	for _, w := range c.wishes {
		wishes = append(wishes, w)
	}
	increase := func(w *resizeWish) int {
		if increases(c.cfg.Allocations.Apply(w.pod), w.pod) {
			return 1
		}
		return 0
	}
	slices.SortFunc(wishes, func(a, b *resizeWish) int {
		return cmp.Or(
			cmp.Compare(increase(a), increase(b)),
			cmp.Compare(priorityOf(b.pod), priorityOf(a.pod)),
			cmp.Compare(classRank(a.pod), classRank(b.pod)),
			a.since.Compare(b.since),
			cmp.Compare(a.pod.UID, b.pod.UID),
		)
	})
	return wishes
}

func classRank(p *v1.Pod) int {
	return slices.Index([]v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}, cgroups.QOSClass(p))
}

// increases reports whether the pod asks for more of anything than it was given.
func increases(given, wanted *v1.Pod) bool {
	has := requestsOf(given)
	for name, n := range requestsOf(wanted) {
		if n > has[name] {
			return true
		}
	}
	return false
}

// infeasible returns why a pod can never be resized in this way on this node; "" if it can.
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

// differs reports whether a container of the pod wants another amount of the resource.
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

// swaps reports whether a container that may use swap, by its share of the memory that it asks for
// (KEP-2400), would ask for other memory while it runs.
func swaps(given, wanted *v1.Pod) bool {
	if cgroups.QOSClass(given) != v1.PodQOSBurstable || pod.IsCritical(given) {
		return false
	}
	for _, lists := range [][2][]v1.Container{{given.Spec.InitContainers, wanted.Spec.InitContainers}, {given.Spec.Containers, wanted.Spec.Containers}} {
		for i := range min(len(lists[0]), len(lists[1])) {
			was, is := &lists[0][i], &lists[1][i]
			request, limit := was.Resources.Requests[v1.ResourceMemory], was.Resources.Limits[v1.ResourceMemory]
			wish := is.Resources.Requests[v1.ResourceMemory]
			restarts := slices.ContainsFunc(is.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
				return p.ResourceName == v1.ResourceMemory && p.RestartPolicy == v1.RestartContainer
			})
			if !restarts && !request.IsZero() && request.Cmp(limit) != 0 && request.Cmp(wish) != 0 {
				return true
			}
		}
	}
	return false
}
