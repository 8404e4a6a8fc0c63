// Package drain terminates all pods when the agent stops and no pod is to keep running. It reports
// the pods that remain.
//
// Owns: the list of what remains of the pods.
// Reads: the workers, observed states, processes in pods' cgroups, the journal.
// Never: waits for a grace period without a limit.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/sync/podworkers"
)

// Time limits of the termination of all pods.
const (
	// drainLimit is twice the longest usual grace period, plus time to clean up.
	drainLimit = 90 * time.Second
	// shortGrace is the grace period, in seconds, of pods that still run then, and hurriedLimit the
	// time for their termination.
	shortGrace   int64 = 1
	hurriedLimit       = 15 * time.Second
	// settleLimit is the time for workers to observe that their pods' cgroups were killed.
	settleLimit = 5 * time.Second
)

// Pods are the desired pods.
type Pods interface {
	List() []*v1.Pod
	Remove(p *v1.Pod)
}

// Workers are the pod workers.
type Workers interface {
	commands
	presence
}

type commands interface {
	SyncKnownPods(desired map[pod.UID]*v1.Pod)
	UpdatePod(o podworkers.UpdatePodOptions)
	WakePod(uid pod.UID)
	WakeAll()
}

type presence interface {
	All() []pod.UID
	Has(uid pod.UID) bool
	Len() int
	Finished() *pod.Inbox[pod.UID]
}

// Observations has the newest observed states (PLEG).
type Observations interface {
	Relisted() <-chan struct{}
	Health() error
	Newest(uid pod.UID) (*pod.Status, bool)
	Known() []*pod.Status
}

// Cgroups provides the cgroups of pods.
type Cgroups interface {
	KillPod(ctx context.Context, uid pod.UID) error
	Processes(uid pod.UID) ([]cgroups.Process, error)
}

// Config holds the dependencies of a Drain.
type Config struct {
	Pods     Pods
	Workers  Workers
	Observed Observations
	// Leftovers returns the pods that have state in the runtime or on disk.
	Leftovers func() []*pod.Status
	Cgroups   Cgroups
	// ReadOnly reports whether the agent's disk is read-only: then neither runtime nor disk can
	// remove terminated pods.
	ReadOnly func() bool
	Journal  *journal.Journal
	Log      *slog.Logger
}

// Drain terminates pods and then the runtime. It is not safe for concurrent use.
type Drain struct {
	Config
	left Left
}

// New returns a Drain. It does no I/O.
func New(cfg Config) *Drain { return &Drain{Config: cfg} }

// EndPods terminates every pod: those of the workers, and others in the runtime and on disk. Call
// it when the desired pods no longer change. Pods that still run after drainLimit get shortGrace,
// whatever their grace period; those that still run after hurriedLimit are killed by their cgroup,
// without the runtime. The error lists what remains.
func (d *Drain) EndPods(ctx context.Context) error {
	for _, p := range d.Pods.List() {
		d.Pods.Remove(p)
	}
	limited, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	d.Workers.SyncKnownPods(nil)
	d.Workers.WakeAll() // also those that wait to retry a removal
	unlisted := d.endLeftovers(limited)
	ending := d.Workers.All()
	containers := d.containerNames()
	if !d.awaitWorkers(limited) {
		d.Log.Warn("pods have not ended, and are forced", "limit", drainLimit, "pods", d.Workers.Len())
		d.forcePods(ctx, ending)
	}
	d.left = d.whatIsLeft(ending, containers)
	return errors.Join(d.left.Err(), unlisted)
}

// endLeftovers terminates pods in the runtime or on disk that have no worker. It fails if the
// runtime does not list its pods.
func (d *Drain) endLeftovers(ctx context.Context) error {
	select {
	case <-d.Observed.Relisted():
	case <-ctx.Done():
		return fmt.Errorf("the runtime did not list its pods within %s: %w", drainLimit, d.Observed.Health())
	}
	for _, s := range d.Leftovers() {
		if !d.Workers.Has(s.UID) {
			d.killWithin(s, longestGrace(s))
		}
	}
	return nil
}

// killWithin makes a worker terminate the runtime's pod with a grace period in seconds, or a
// shorter one if it is terminating already.
func (d *Drain) killWithin(s *pod.Status, grace int64) {
	d.Workers.UpdatePod(podworkers.UpdatePodOptions{
		UpdateType: podworkers.SyncPodKill, RunningPod: s,
		KillPodOptions: &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: &grace},
	})
}

// longestGrace returns the longest grace period, in seconds, of the pod's containers.
func longestGrace(s *pod.Status) int64 {
	grace := int64(1)
	for i := range s.Containers {
		if g, ok := cri.TerminationGrace(&s.Containers[i]); ok {
			grace = max(grace, g)
		}
	}
	return grace
}

// awaitWorkers waits until all workers have exited. It returns false if ctx is done first.
func (d *Drain) awaitWorkers(ctx context.Context) bool {
	finished := d.Workers.Finished()
	for d.Workers.Len() > 0 {
		select {
		case <-finished.Wake():
			finished.Take()
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// forcePods terminates pods that have exceeded drainLimit.
func (d *Drain) forcePods(ctx context.Context, uids []pod.UID) {
	for _, uid := range uids {
		if s, known := d.Observed.Newest(uid); known && d.Workers.Has(uid) {
			d.killWithin(s, shortGrace)
		}
	}
	hurried, cancel := context.WithTimeout(ctx, hurriedLimit)
	defer cancel()
	if d.awaitWorkers(hurried) {
		return
	}
	for _, uid := range uids {
		if !d.Workers.Has(uid) {
			continue
		}
		if err := d.Cgroups.KillPod(ctx, uid); err != nil {
			d.Log.Warn("pod not killed by its cgroup", "uid", uid, "error", err)
		}
		d.Workers.WakePod(uid)
	}
	settling, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	d.awaitWorkers(settling)
}
