// Package drain ends all pods when the agent leaves none behind. It names what has not ended.
//
// Owns: the list of what is left of pods that were to end.
// Reads: the workers, observations, processes in pods' cgroups, the journal.
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

// How long the end of all pods may take.
const (
	// drainLimit is the longest usual grace period twice, and time to clean up.
	drainLimit = 90 * time.Second
	// shortGrace is the grace period in seconds of what runs on then, and hurriedLimit the time for
	// its end.
	shortGrace   int64 = 1
	hurriedLimit       = 15 * time.Second
	// settleLimit is how long workers have to see that what ran on was killed by its cgroup.
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

// commands is what workers are made to do.
type commands interface {
	SyncKnownPods(desired map[pod.UID]*v1.Pod)
	UpdatePod(o podworkers.UpdatePodOptions)
	WakePod(uid pod.UID)
	WakeAll()
}

// presence is which workers there are.
type presence interface {
	All() []pod.UID
	Has(uid pod.UID) bool
	Len() int
	Finished() *pod.Inbox[pod.UID]
}

// Observations are what the runtime showed last (PLEG).
type Observations interface {
	Relisted() <-chan struct{}
	Health() error
	Newest(uid pod.UID) (*pod.Status, bool)
	Known() []*pod.Status
}

// Cgroups are the cgroups of pods.
type Cgroups interface {
	KillPod(ctx context.Context, uid pod.UID) error
	Processes(uid pod.UID) ([]cgroups.Process, error)
}

// Config is what a Drain needs.
type Config struct {
	Pods     Pods
	Workers  Workers
	Observed Observations
	// Leftovers returns what the runtime and the disk hold of pods.
	Leftovers func() []*pod.Status
	Cgroups   Cgroups
	// ReadOnly reports that the agent's disk takes no writes: then neither runtime nor disk can
	// forget what has ended.
	ReadOnly func() bool
	Journal  *journal.Journal
	Log      *slog.Logger
}

// Drain ends pods, and the runtime after them. It is for one goroutine at a time.
type Drain struct {
	Config
	left Left
}

// New returns a Drain. It does no I/O.
func New(cfg Config) *Drain { return &Drain{Config: cfg} }

// EndPods ends every pod: those of the workers, and what the runtime and the disk have besides. It
// is called when nothing else changes the desired pods any more. What has not ended after
// drainLimit has no more patience coming, whatever its grace period is; what runs on after that is
// killed by the cgroup, without the runtime. The error names what is left all the same.
func (d *Drain) EndPods(ctx context.Context) error {
	for _, p := range d.Pods.List() {
		d.Pods.Remove(p)
	}
	patient, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	d.Workers.SyncKnownPods(nil)
	d.Workers.WakeAll() // also those that wait to try a removal again
	unlisted := d.endLeftovers(patient)
	ending := d.Workers.All()
	containers := d.containerNames()
	if !d.awaitWorkers(patient) {
		d.Log.Warn("pods have not ended, and are forced", "limit", drainLimit, "pods", d.Workers.Len())
		d.forcePods(ctx, ending)
	}
	d.left = d.whatIsLeft(ending, containers)
	return errors.Join(d.left.Err(), unlisted)
}

// endLeftovers ends what the runtime and the disk have besides the pods of workers. The error says
// that the runtime does not list its pods.
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

// killWithin has a worker end what the runtime has of a pod within the grace period in seconds, or
// in less, if it is ending already.
func (d *Drain) killWithin(s *pod.Status, grace int64) {
	d.Workers.UpdatePod(podworkers.UpdatePodOptions{
		UpdateType: podworkers.SyncPodKill, RunningPod: s,
		KillPodOptions: &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: &grace},
	})
}

// longestGrace returns the longest grace period in seconds that the pod's containers were made
// with.
func longestGrace(s *pod.Status) int64 {
	grace := int64(1)
	for i := range s.Containers {
		if g, ok := cri.TerminationGrace(&s.Containers[i]); ok {
			grace = max(grace, g)
		}
	}
	return grace
}

// awaitWorkers waits until the workers have left, and reports false when ctx is done before.
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

// forcePods ends pods that have had their time.
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
