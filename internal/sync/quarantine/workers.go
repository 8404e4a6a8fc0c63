package quarantine

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/sync/podsync"
	"berth/internal/sync/podworkers"
)

// errSetAside is returned instead of terminating a quarantined pod. The workers retry, in case the
// pod is released.
var errSetAside = errors.New(`the pod is set aside, as the agent crashed with it in hand; see "berth explain", and let go of it with "berth release"`)

// guarded is a PodSyncer that notes passes in progress and skips quarantined pods.
type guarded struct {
	next podworkers.PodSyncer
	q    *Quarantine
}

// Guard wraps the syncer with the quarantine. The runtime calls of a pass carry its pod in their
// context.
func (q *Quarantine) Guard(next podworkers.PodSyncer) podworkers.PodSyncer { return guarded{next, q} }

// SyncPod brings the pod closer to its spec. It does nothing for a quarantined pod.
func (g guarded) SyncPod(ctx context.Context, r podsync.Request) (podsync.Result, error) {
	w := work{r.UID, r.Pod.Generation}
	if g.q.isQuarantined(w) {
		return podsync.Result{}, nil
	}
	defer g.q.inProgress.begin(w)()
	return g.next.SyncPod(cri.WithPod(ctx, r.UID), r)
}

// SyncTerminatingPod stops all containers of the pod. It fails for a quarantined pod.
func (g guarded) SyncTerminatingPod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.SyncTerminatingPod)
}

// SyncTerminatedPod releases the resources of the pod. It fails for a quarantined pod.
func (g guarded) SyncTerminatedPod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.SyncTerminatedPod)
}

// RemovePod removes the rest of the pod. It fails for a quarantined pod.
func (g guarded) RemovePod(ctx context.Context, r podsync.Request) error {
	return g.end(ctx, r, g.next.RemovePod)
}

func (g guarded) end(ctx context.Context, r podsync.Request, pass func(context.Context, podsync.Request) error) error {
	w := work{r.UID, ending}
	if g.q.isQuarantined(w) {
		return errSetAside
	}
	defer g.q.inProgress.begin(w)()
	return pass(cri.WithPod(ctx, r.UID), r)
}

// Workers are the pod workers.
type Workers interface {
	UpdatePod(o podworkers.UpdatePodOptions)
}

// Pods are the desired pods.
type Pods interface {
	Get(uid pod.UID) (*v1.Pod, bool)
}

// Releaser explains quarantines, and releases pods by namespace and name.
type Releaser struct {
	Quarantine *Quarantine
	Pods       Pods
	Workers    Workers
}

// Why returns the crash report for which the pod is quarantined, and false if it is not.
func (r Releaser) Why(uid pod.UID) (report string, quarantined bool) { return r.Quarantine.Why(uid) }

// Release ends the quarantine of the pods of this name, wakes their workers, and reports whether
// one was quarantined.
func (r Releaser) Release(namespace, name string) (released bool) {
	for _, s := range r.Quarantine.Journal.Stories(namespace, name) {
		uid := s.Subject.UID
		if uid == "" || !r.Quarantine.release(uid) {
			continue
		}
		released = true
		r.Quarantine.Journal.Record(journal.Entry{Subject: s.Subject, Component: component, Decision: "the pod is released", Why: "a client asked for it"})
		wake := podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodSync}
		if p, ok := r.Pods.Get(uid); ok {
			wake.Pod = p
		} else {
			wake.RunningPod = &pod.Status{UID: uid, Namespace: namespace, Name: name}
		}
		r.Workers.UpdatePod(wake)
	}
	return released
}
