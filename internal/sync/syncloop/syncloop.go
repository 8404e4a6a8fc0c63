// Package syncloop is the agent's sync loop: one goroutine that turns every event into updates of
// pod workers.
//
// Owns: the desired pods (it is the only writer of podManager) and the order in which events are
// handled.
// Reads: PodConfig, PLEG, changed probe results, finished workers, the pods whose API objects or
// devices changed.
// Never: blocks: it does not call the runtime or the API server, and does not wait for a worker.
package syncloop

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/sync/podworkers"
)

// PodSource is the loop's view of PodConfig. Take returns the operations that lead from the
// previously taken sets of pods to the newest ones.
type PodSource interface {
	Wake() <-chan struct{}
	Take() []pod.PodUpdate
	SeenAllSources() bool
}

// PodWorkers receives the loop's updates. No method blocks.
type PodWorkers interface {
	UpdatePod(o podworkers.UpdatePodOptions)
	WakePod(uid pod.UID)
	WakeAll()
}

// Housekeeping reconciles the workers with the desired pods. No method blocks.
type Housekeeping interface {
	SyncKnownPods(desired map[pod.UID]*v1.Pod)
	Orphan(uid pod.UID)
	Has(uid pod.UID) bool
}

// Config holds the dependencies of the loop.
type Config struct {
	Source       PodSource
	Workers      PodWorkers
	Housekeeping Housekeeping
	Pods         *pod.Manager
	// Changed names the pods whose observed state changed (PLEG). Restored has an element when the
	// runtime has recovered. Relisted is closed once Leftovers is complete.
	Changed  *pod.Inbox[pod.UID]
	Restored <-chan struct{}
	Relisted <-chan struct{}
	// Objects names the pods that refer to an API object that changed; nil without an API server.
	Objects *pod.Inbox[pod.UID]
	// Resized names the pods whose pending resize was reconsidered; nil if resizes are never
	// pending.
	Resized *pod.Inbox[pod.UID]
	// Devices names the pods whose devices or device plugins changed; nil without devices.
	Devices *pod.Inbox[pod.UID]
	// Finished names the pods whose worker has exited or has nothing left to do.
	Finished *pod.Inbox[pod.UID]
	// Probes names the pods with a changed probe result; nil without probes.
	Probes *pod.Inbox[pod.UID]
	// Static receives the full names of static and mirror pods that were added, changed or removed;
	// nil without mirror pods.
	Static *pod.Inbox[pod.FullName]
	// Published is called with each pod and mirror pod from the API server; nil without one. It
	// must not block.
	Published func(*v1.Pod)
	// Leftovers returns every pod that has state in the runtime or on disk, desired or not.
	// Observed returns the runtime's state of one pod. They must not block.
	Leftovers func() []*pod.Status
	Observed  func(uid pod.UID) (*pod.Status, bool)
}

// SyncHandler handles the loop's events. Its methods are called from the loop's goroutine only.
type SyncHandler struct {
	Config
	known     bool          // latch: every source seen, the workers have the desired pods
	announced chan struct{} // closed with known
	listed    bool          // latch: leftovers have been compared with the desired pods
}

// SyncLoop dispatches events to the pod workers. Create it with New.
type SyncLoop struct {
	handler SyncHandler
	pings   chan struct{}
}

// New returns a loop that handles events once Run is called.
func New(cfg Config) *SyncLoop {
	return &SyncLoop{handler: SyncHandler{Config: cfg, announced: make(chan struct{})}, pings: make(chan struct{})}
}

// Known is closed when every source has been seen and the workers have the pods of all sources.
func (l *SyncLoop) Known() <-chan struct{} { return l.handler.announced }

// KnowsPods reports whether Known is closed. SeenAllSources returns true earlier: when the pods of
// some sources have been taken but not handled.
func (l *SyncLoop) KnowsPods() bool {
	select {
	case <-l.handler.announced:
		return true
	default:
		return false
	}
}

// Ping returns nil once the loop has received the ping, or an error if ctx is done first.
func (l *SyncLoop) Ping(ctx context.Context) error {
	select {
	case l.pings <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sync loop does not answer: %w", ctx.Err())
	}
}

// Run handles events until ctx is done (the kubelet's syncLoop).
func (l *SyncLoop) Run(ctx context.Context) error {
	l.handler.knowPods() // without sources there is no event
	for l.syncLoopIteration(ctx) {
	}
	return ctx.Err()
}

// syncLoopIteration handles one event. The select lists all inputs of the loop.
func (l *SyncLoop) syncLoopIteration(ctx context.Context) bool {
	h := &l.handler
	relisted := h.Relisted
	if h.listed || !h.known {
		relisted = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-h.Source.Wake(): // config
		for _, u := range h.Source.Take() {
			h.dispatch(u)
		}
		// Only after the updates: Take marks sources as seen, and the pods of one source must not
		// appear undesired while another's are handled.
		h.knowPods()
	case <-h.Changed.Wake(): // PLEG
		changed := h.Changed.Take()
		h.HandlePodSyncs(h.desired(changed))
		h.HandlePodCleanups(changed)
	case <-h.Objects.Wake(): // ConfigMaps, Secrets, tokens due for renewal
		h.HandlePodSyncs(h.desired(h.Objects.Take()))
	case <-h.Probes.Wake(): // liveness, readiness and startup
		h.HandlePodSyncs(h.desired(h.Probes.Take()))
	case <-h.Devices.Wake(): // device health, plugin registration
		h.HandlePodSyncs(h.desired(h.Devices.Take()))
	case <-h.Resized.Wake():
		for _, uid := range h.Resized.Take() {
			h.Workers.WakePod(uid)
		}
	case <-h.Restored: // the runtime has recovered
		// Retry the passes that failed meanwhile, also those of terminating pods.
		h.Workers.WakeAll()
	case <-h.Finished.Wake(): // housekeeping
		h.HandlePodCleanups(h.Finished.Take())
	case <-relisted:
		h.endLeftovers()
	case <-l.pings:
	}
	return true
}

func (h *SyncHandler) dispatch(u pod.PodUpdate) {
	switch u.Op {
	case pod.ADD:
		h.HandlePodAdditions(u.Pods) // without pods: the first update of a source
	case pod.UPDATE:
		h.HandlePodUpdates(u.Pods)
	case pod.DELETE: // an update that sets a deletionTimestamp; the worker terminates the pod
		h.HandlePodUpdates(u.Pods)
	case pod.REMOVE:
		h.HandlePodRemoves(u.Pods)
	case pod.RECONCILE:
		h.HandlePodReconcile(u.Pods)
	}
}

// HandlePodAdditions starts workers for new pods, oldest pod first.
func (h *SyncHandler) HandlePodAdditions(pods []*v1.Pod) {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range pods {
		h.set(p, podworkers.SyncPodCreate)
	}
}

// set adds the pod to the desired pods and hands it to its worker. A mirror pod has no worker: it
// is compared with its static pod.
func (h *SyncHandler) set(p *v1.Pod, t podworkers.SyncPodType) {
	h.Pods.Set(p)
	h.noteStatic(p)
	if h.Published != nil && pod.SourceOf(p) == pod.APISource {
		h.Published(p)
	}
	if !pod.IsMirror(p) {
		h.Workers.UpdatePod(podworkers.UpdatePodOptions{UpdateType: t, Pod: p})
	}
}

// noteStatic notifies status.Mirrors that a static or mirror pod of this name was added, changed or
// removed.
func (h *SyncHandler) noteStatic(p *v1.Pod) {
	if pod.IsMirror(p) || pod.IsStatic(p) {
		h.Static.Put(pod.FullNameOf(p))
	}
}

// HandlePodUpdates hands the new spec to the workers. A spec with a deletionTimestamp terminates
// the pod.
func (h *SyncHandler) HandlePodUpdates(pods []*v1.Pod) {
	for _, p := range pods {
		h.set(p, podworkers.SyncPodUpdate)
	}
}

// HandlePodRemoves terminates pods that were removed from their source. Differs from the kubelet,
// which waits until all sources have been seen: there, a static pod that is removed or changed
// while the API server is unavailable keeps running until the API server recovers.
func (h *SyncHandler) HandlePodRemoves(pods []*v1.Pod) {
	for _, p := range pods {
		h.Pods.Remove(p)
		h.noteStatic(p)
		if !pod.IsMirror(p) {
			h.Workers.UpdatePod(podworkers.UpdatePodOptions{
				UpdateType: podworkers.SyncPodKill, Pod: p, Wanted: podworkers.Unwanted, KillPodOptions: computeKillOptions(p),
			})
		}
	}
}

// computeKillOptions returns how to terminate a pod that was removed from its source. The API
// object of a terminating pod disappears early only on a force deletion, which takes effect at once
// (Kubernetes documentation, "Termination of Pods"). Any other pod gets the grace period of its
// spec: its object may also be missing because the API server's data was restored.
func computeKillOptions(p *v1.Pod) *podworkers.KillPodOptions {
	if p.DeletionTimestamp == nil || pod.SourceOf(p) != pod.APISource {
		return nil
	}
	return &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: new(int64)}
}

// HandlePodReconcile applies changes of the API's copy of the status. Most of these are the agent's
// own writes, which cause no pass.
func (h *SyncHandler) HandlePodReconcile(pods []*v1.Pod) {
	for _, p := range pods {
		h.set(p, podworkers.SyncPodReconcile)
	}
}

// HandlePodSyncs makes the workers sync their pods again.
func (h *SyncHandler) HandlePodSyncs(pods []*v1.Pod) {
	for _, p := range pods {
		h.Workers.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodSync, Pod: p})
	}
}

// desired returns the desired pods among uids. It wakes the workers of the others, which are
// terminating.
func (h *SyncHandler) desired(uids []pod.UID) []*v1.Pod {
	var out []*v1.Pod
	for _, uid := range uids {
		if p, ok := h.Pods.Get(uid); ok {
			out = append(out, p)
		} else {
			h.Workers.WakePod(uid)
		}
	}
	return out
}

// knowPods marks, once, the desired pods as known and terminates the workers of all other pods. It
// waits until every source has been seen, since before that a desired pod may appear undesired.
func (h *SyncHandler) knowPods() {
	if h.known || !h.Source.SeenAllSources() {
		return
	}
	h.known = true
	defer func() {
		close(h.announced)
		for _, mirror := range h.Pods.Mirrors() { // now one without a static pod can be deleted
			h.noteStatic(mirror)
		}
	}()
	desired := map[pod.UID]*v1.Pod{}
	for _, p := range h.Pods.List() {
		desired[p.UID] = p
	}
	h.Housekeeping.SyncKnownPods(desired)
}

// endLeftovers terminates the undesired pods that have state in the runtime or on disk, once both
// the desired pods and that state are known.
func (h *SyncHandler) endLeftovers() {
	h.listed = true
	for _, s := range h.Leftovers() {
		h.endLeftover(s)
	}
}

func (h *SyncHandler) endLeftover(s *pod.Status) {
	if _, wanted := h.Pods.Get(s.UID); !wanted && !h.Housekeeping.Has(s.UID) {
		h.Workers.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodKill, RunningPod: s})
	}
}

// HandlePodCleanups (housekeeping) reconciles workers and desired pods, for pods that changed or
// whose worker has finished: it starts a worker for a desired pod without one, terminates the
// worker of an undesired pod, and terminates a pod in the runtime that has neither.
func (h *SyncHandler) HandlePodCleanups(uids []pod.UID) {
	for _, uid := range uids {
		p, wanted := h.Pods.Get(uid)
		switch {
		case h.Housekeeping.Has(uid):
			if !wanted && h.known {
				h.Housekeeping.Orphan(uid)
			}
		case wanted:
			h.Workers.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodCreate, Pod: p})
		case h.listed:
			if s, ok := h.Observed(uid); ok {
				h.endLeftover(s)
			}
		}
	}
}
