// Package syncloop is the agent's main loop: one goroutine that turns every event into updates of
// pod workers.
//
// Owns: the desired truth (it is the only writer of podManager) and the order in which events are
// handled.
// Reads: PodConfig, PLEG, changed verdicts of probes, the workers' ends, the names of pods whose
// objects changed, or whose devices did.
// Never: blocks: no call of the runtime or the API server, no waiting for a worker.
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

// PodSource is PodConfig as the loop sees it. Take returns the operations that lead from what was
// last taken to the newest sets.
type PodSource interface {
	Wake() <-chan struct{}
	Take() []pod.PodUpdate
	SeenAllSources() bool
}

// PodWorkers is where the loop hands updates to. No method blocks.
type PodWorkers interface {
	UpdatePod(o podworkers.UpdatePodOptions)
	WakePod(uid pod.UID)
	WakeAll()
}

// Housekeeping is by what the loop makes the workers and the desired pods agree. No method blocks.
type Housekeeping interface {
	SyncKnownPods(desired map[pod.UID]*v1.Pod)
	Orphan(uid pod.UID)
	Has(uid pod.UID) bool
}

// Config is what the loop needs.
type Config struct {
	Source       PodSource
	Workers      PodWorkers
	Housekeeping Housekeeping
	Pods         *pod.Manager
	// Changed names the pods whose observation changed (PLEG), Restored has an element when the
	// runtime is back, Relisted is closed once Leftovers is complete.
	Changed  *pod.Inbox[pod.UID]
	Restored <-chan struct{}
	Relisted <-chan struct{}
	// Objects names the pods of which an object changed that they refer to; nil without an API
	// server.
	Objects *pod.Inbox[pod.UID]
	// Resized names the pods of which a resize that waited was decided anew; nil where none waits.
	Resized *pod.Inbox[pod.UID]
	// Devices names the pods of which a device, or its plugin, has become another; nil where there
	// are none.
	Devices *pod.Inbox[pod.UID]
	// Finished names the pods whose worker has left, or has nothing left to do.
	Finished *pod.Inbox[pod.UID]
	// Probes names the pods of which a probe's verdict changed; nil where nothing probes.
	Probes *pod.Inbox[pod.UID]
	// Static gets the full names of static pods and mirrors that came, changed or went; nil when
	// there are no mirrors.
	Static *pod.Inbox[pod.FullName]
	// Published is called with each pod and mirror as the API server has it; nil without one. It
	// must not block.
	Published func(*v1.Pod)
	// Leftovers returns what the runtime and the disk hold of pods, whether wanted or not, and
	// Observed what the runtime holds of one. They must not block.
	Leftovers func() []*pod.Status
	Observed  func(uid pod.UID) (*pod.Status, bool)
}

// SyncHandler handles what the loop receives. Its methods are called from the loop's goroutine
// only.
type SyncHandler struct {
	Config
	known     bool          // latch: every source has been seen, and the workers know what they want
	announced chan struct{} // closed with known
	listed    bool          // latch: what the runtime and the disk held then was compared with what is wanted
}

// SyncLoop is the loop.
type SyncLoop struct {
	handler SyncHandler
	pings   chan struct{}
}

// New returns a loop.
func New(cfg Config) *SyncLoop {
	return &SyncLoop{handler: SyncHandler{Config: cfg, announced: make(chan struct{})}, pings: make(chan struct{})}
}

// Known is closed when every source has been seen, and the workers know the pods of all.
func (l *SyncLoop) Known() <-chan struct{} { return l.handler.announced }

// KnowsPods reports whether Known is closed. SeenAllSources says so earlier, when the pods of some
// sources have been taken and not been handled.
func (l *SyncLoop) KnowsPods() bool {
	select {
	case <-l.handler.announced:
		return true
	default:
		return false
	}
}

// Ping returns once the loop has come by, or an error when ctx is done before.
func (l *SyncLoop) Ping(ctx context.Context) error {
	select {
	case l.pings <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sync loop does not answer: %w", ctx.Err())
	}
}

// Run is syncLoop: it handles events until ctx is done.
func (l *SyncLoop) Run(ctx context.Context) error {
	l.handler.knowPods() // without sources there is no event
	for l.syncLoopIteration(ctx) {
	}
	return ctx.Err()
}

// syncLoopIteration handles one event; the select is the list of the loop's inputs.
func (l *SyncLoop) syncLoopIteration(ctx context.Context) bool {
	h := &l.handler
	relisted := h.Relisted
	if h.listed || !h.known {
		relisted = nil
	}
	var objects, probes, resized, devices <-chan struct{}
	if h.Objects != nil {
		objects = h.Objects.Wake()
	}
	if h.Probes != nil {
		probes = h.Probes.Wake()
	}
	if h.Resized != nil {
		resized = h.Resized.Wake()
	}
	if h.Devices != nil {
		devices = h.Devices.Wake()
	}
	select {
	case <-ctx.Done():
		return false
	case <-h.Source.Wake(): // config
		for _, u := range h.Source.Take() {
			h.dispatch(u)
		}
		// Only now: sources count as seen from Take on, and the pods of one must not look unwanted
		// while another's are handled.
		h.knowPods()
	case <-h.Changed.Wake(): // PLEG
		changed := h.Changed.Take()
		h.HandlePodSyncs(h.desired(changed))
		h.HandlePodCleanups(changed)
	case <-objects: // ConfigMaps, Secrets, tokens to be renewed
		h.HandlePodSyncs(h.desired(h.Objects.Take()))
	case <-probes: // liveness, readiness and startup
		h.HandlePodSyncs(h.desired(h.Probes.Take()))
	case <-devices: // health, and plugins that register
		h.HandlePodSyncs(h.desired(h.Devices.Take()))
	case <-resized:
		for _, uid := range h.Resized.Take() {
			h.Workers.WakePod(uid)
		}
	case <-h.Restored: // the runtime is back
		// Passes that failed meanwhile are tried again, also those of pods that end.
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
		h.HandlePodAdditions(u.Pods) // without pods: a source was heard for the first time
	case pod.UPDATE:
		h.HandlePodUpdates(u.Pods)
	case pod.DELETE: // an update to a spec with a deletionTimestamp, by which the worker ends the pod
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

// set makes the pod a desired one and hands it to its worker. A mirror has none: it is compared
// with its static pod.
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

// noteStatic notifies status.Mirrors that a static pod or a mirror of this name came, changed or
// went.
func (h *SyncHandler) noteStatic(p *v1.Pod) {
	if h.Static != nil && (pod.IsMirror(p) || pod.IsStatic(p)) {
		h.Static.Put(pod.FullNameOf(p))
	}
}

// HandlePodUpdates hands the new spec to the workers. One with a deletionTimestamp ends the pod.
func (h *SyncHandler) HandlePodUpdates(pods []*v1.Pod) {
	for _, p := range pods {
		h.set(p, podworkers.SyncPodUpdate)
	}
}

// HandlePodRemoves ends pods that their source had and no longer has. Differs from the kubelet,
// which waits until all sources were seen: there a static pod that is taken away, or changed, while
// the API server is away goes on until that is back.
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

// computeKillOptions says how a pod that its source no longer has is to end. The object of a pod
// that is ending already goes before its time only if somebody deletes it by force, which is to be
// obeyed at once (Kubernetes documentation, "Termination of Pods"). Any other pod has the time that
// its spec gives it: that it is gone may also be the doing of an API server whose data was
// restored.
func computeKillOptions(p *v1.Pod) *podworkers.KillPodOptions {
	if p.DeletionTimestamp == nil || pod.SourceOf(p) != pod.APISource {
		return nil
	}
	atOnce := int64(0)
	return &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: &atOnce}
}

// HandlePodReconcile takes over what changed in the API's copy of the status. Mostly these are the
// agent's own writes, for which the workers make no pass.
func (h *SyncHandler) HandlePodReconcile(pods []*v1.Pod) {
	for _, p := range pods {
		h.set(p, podworkers.SyncPodReconcile)
	}
}

// HandlePodSyncs has workers reconcile their pods again.
func (h *SyncHandler) HandlePodSyncs(pods []*v1.Pod) {
	for _, p := range pods {
		h.Workers.UpdatePod(podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodSync, Pod: p})
	}
}

// desired returns the pods among uids that are wanted. The workers of the others, which end, are
// woken.
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

// knowPods ends, once, what earlier agents left of pods that nobody wants any more. It waits until
// every source has been seen, since before that a pod may only seem unwanted.
func (h *SyncHandler) knowPods() {
	if h.known || !h.Source.SeenAllSources() {
		return
	}
	h.known = true
	defer func() {
		close(h.announced)
		for _, mirror := range h.Pods.Mirrors() { // one without a static pod can go now
			h.noteStatic(mirror)
		}
	}()
	desired := map[pod.UID]*v1.Pod{}
	for _, p := range h.Pods.List() {
		desired[p.UID] = p
	}
	h.Housekeeping.SyncKnownPods(desired)
}

// endLeftovers ends what the runtime and the disk hold of pods that nobody wants, once it is known
// what is wanted and what is there.
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

// HandlePodCleanups (housekeeping) makes worker and desired pod agree for pods that changed or
// whose worker is done: a desired pod without a worker gets one, the worker of a pod that nobody
// wants ends, and so does what the runtime holds of a pod that nobody knows.
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
