package quarantine

import (
	"context"
	"errors"

	"berth/internal/cri"
	"berth/internal/podsync"
	"berth/internal/podworkers"
)

// errSetAside is the outcome of ending a pod that is set aside. It is tried again, in case the pod
// is released.
var errSetAside = errors.New(`the pod is set aside, as the agent crashed with it in hand; see "berth explain", and let go of it with "berth release"`)

// guarded is a PodSyncer that notes which pods are in hand, and leaves those alone that are set
// aside.
type guarded struct {
	next podworkers.PodSyncer
	q    *Quarantine
}

// Guard returns the syncer with the quarantine's policy around it. The runtime's calls of a pass
// are made for its pod.
func (q *Quarantine) Guard(next podworkers.PodSyncer) podworkers.PodSyncer { return guarded{next, q} }

// SyncPod brings the pod nearer to its spec.
func (g guarded) SyncPod(ctx context.Context, r podsync.Request) (podsync.Result, error) {
	w := work{r.UID, r.Pod.Generation}
	if g.q.isQuarantined(w) {
		return podsync.Result{}, nil
	}
	defer g.q.inHand.take(w)()
	return g.next.SyncPod(cri.For(ctx, r.UID), r)
}

// SyncTerminatingPod stops everything of the pod.
func (g guarded) SyncTerminatingPod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.SyncTerminatingPod)
}

// SyncTerminatedPod frees what the running pod held.
func (g guarded) SyncTerminatedPod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.SyncTerminatedPod)
}

// RemovePod removes what is left of the pod.
func (g guarded) RemovePod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.RemovePod)
}

func (g guarded) end(ctx context.Context, r podsync.Request, pass func(context.Context, podsync.Request) error) error {
	w := work{r.UID, ending}
	if g.q.isQuarantined(w) {
		return errSetAside
	}
	defer g.q.inHand.take(w)()
	return pass(cri.For(ctx, r.UID), r)
}
