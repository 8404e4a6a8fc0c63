// Package podsync is one pass over one pod: SyncPod, SyncTerminatingPod and SyncTerminatedPod as ordered steps.
//
// Owns: the order of the steps, the pod's folder, the last start error of each container.
// Reads: the observation that it is given; statuses through the status manager.
// Never: decides when a pass happens, or what state the pod's life is in.
package podsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/allocation"
	"berth/internal/crispec"
	"berth/internal/journal"
	"berth/internal/kuberuntime"
	"berth/internal/lifecycle"
	"berth/internal/pod"
	"berth/internal/status"
	"berth/internal/volumes"
)

// Request is one pass.
type Request struct {
	UID pod.UID
	// Pod is nil for a pod that only the runtime or the disk knows.
	Pod      *v1.Pod
	Observed *pod.Status
	// Grace is how long containers of a terminating pod may take.
	Grace time.Duration
	// StatusFunc, if not nil, changes the status that the pod ends with.
	StatusFunc func(*v1.PodStatus)
	// Evicted: the pod ended to make room, so that nothing of its containers is kept.
	Evicted bool
	// Refused: the pod was not admitted. Its status says why, and stays so.
	Refused bool
	// Again: a pod of the same UID follows, as its manifest was deleted and written again.
	Again bool
	// Wake has an element when the pod may look different than when the pass began. Only a pass that lasts looks at it.
	Wake <-chan struct{}
}

// Result is the outcome of SyncPod.
type Result struct {
	// Terminal: the pod has succeeded or failed; nothing of it is to run any more.
	Terminal bool
	// Touched: the runtime was changed; the pod is to be looked at again at once.
	Touched bool
	// RetryAt is when to look again without any event: the end of the earliest back-off, or the pod's deadline. Zero: never.
	RetryAt time.Time
	// Woken: the pass has taken from Wake, and the pod is to be looked at for what that told.
	Woken bool
}

// ContainerRuntime is what a pass needs of kuberuntime.
type ContainerRuntime interface {
	SyncPod(ctx context.Context, r kuberuntime.Request) (kuberuntime.Result, error)
	KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error
	PruneDead(ctx context.Context, observed *pod.Status) error
	RemoveContainers(ctx context.Context, observed *pod.Status) error
	ReleaseUserNamespace(uid pod.UID) error
	RemovePod(ctx context.Context, observed *pod.Status, fate kuberuntime.LogFate) error
	RemoveLogs(namespace, name string, uid pod.UID) error
}

// Cgroups is what a pass needs of containerManager.
type Cgroups interface {
	EnsurePod(ctx context.Context, p *v1.Pod) error
	PodParent(p *v1.Pod) string
	RemovePod(ctx context.Context, uid pod.UID) error
}

// Volumes is what a pass needs of volumeManager: Prepare reads, Setup makes, both for a pod that is to run.
type Volumes interface {
	Prepare(ctx context.Context, p *v1.Pod) (volumes.Inputs, volumes.Errors)
	Setup(ctx context.Context, p *v1.Pod, in volumes.Inputs) (map[string]crispec.Volume, volumes.Errors)
	Teardown(ctx context.Context, uid pod.UID) error
}

// Objects (secretManager and configMapManager) are told which pods may ask for what they refer to.
type Objects interface {
	Register(p *v1.Pod)
	Unregister(uid pod.UID)
}

// Probes (probeManager) probe the containers that they are shown, as long as they are.
type Probes interface {
	// Sync is given each new observation of a pod that is to run, or that ends. It does not block.
	Sync(p *v1.Pod, observed *pod.Status)
	// Terminating says that the pod begins to end: only what tells others whether it still serves goes on.
	Terminating(uid pod.UID)
	// Remove forgets the pod.
	Remove(uid pod.UID)
	// Verdicts are what the plan goes by.
	Verdicts(uid pod.UID) pod.ProbeVerdicts
}

// Config is what a Syncer needs.
type Config struct {
	Runtime ContainerRuntime
	Cgroups Cgroups
	Volumes Volumes
	// Objects is nil without an API server.
	Objects Objects
	// Probes and ProbeResults are nil where nothing probes: containers then count as started and ready.
	Probes       Probes
	ProbeResults status.ProbeResults
	Status       *status.Manager
	// Keep has statuses written for the next agent as they are now, and waits until that was tried; nil: none are kept.
	Keep func(ctx context.Context)
	// Allocations say how far a resize of a pod has come; nil: no pod is resized.
	Allocations *allocation.Allocations
	// Observe reads the pod as it is now.
	Observe func(ctx context.Context, uid pod.UID) (*pod.Status, error)
	// WithTerminationMessages adds the messages that exited containers left.
	WithTerminationMessages func(ctx context.Context, s *pod.Status) *pod.Status
	Event                   func(p *v1.Pod, container, eventtype, reason, message string)
	Journal                 *journal.Journal
	Log                     *slog.Logger
	RootDir                 string
	// RuntimeName is the prefix of container ids in statuses: "containerd".
	RuntimeName func() string
	// HostIPs returns the node's addresses, primary first.
	HostIPs func() []string
	// MaxRestartPeriod is crashLoopBackOff.maxContainerRestartPeriod, for what is told of back-offs; 0: the default.
	MaxRestartPeriod time.Duration
}

// Syncer does passes. Passes of different pods run side by side; those of one pod never overlap.
type Syncer struct {
	Config

	mu     sync.Mutex
	errors map[pod.UID]map[string]lifecycle.StartError // guarded by mu; by container name
	// mounted are the pods whose volumes were set up by this agent; guarded by mu.
	mounted map[pod.UID]bool
}

// New returns a Syncer.
func New(cfg Config) *Syncer {
	if cfg.Allocations == nil {
		cfg.Allocations = allocation.New(allocation.Config{})
	}
	return &Syncer{Config: cfg, errors: map[pod.UID]map[string]lifecycle.StartError{}, mounted: map[pod.UID]bool{}}
}

// SyncPod brings the pod nearer to its spec.
func (s *Syncer) SyncPod(ctx context.Context, r Request) (Result, error) {
	var res Result
	s.syncProbes(r)
	s.mark(r, journal.Admitted)
	s.Journal.Expect(subject(r))
	if s.report(ctx, r, stillRunning) {
		return Result{Terminal: true}, nil
	}
	res.RetryAt = deadlineOf(r.Pod, s.Status)
	var in volumes.Inputs
	steps := []struct {
		name string
		do   func(context.Context, Request, *Result) error
	}{
		{"objects", s.registerObjects},
		{"data dirs", s.makeDataDirs},
		{"cgroup", s.ensureCgroup},
		{"volume inputs", func(ctx context.Context, r Request, res *Result) (err error) {
			in, err = s.prepareVolumes(ctx, r, res)
			return err
		}},
		{"runtime", func(ctx context.Context, r Request, res *Result) error { // sandbox, mounts and images side by side, then containers in order
			return s.syncRuntime(ctx, r, in, res)
		}},
	}
	for _, st := range steps {
		if err := ctx.Err(); err != nil {
			return res, err
		}
		if err := st.do(ctx, r, &res); err != nil {
			return res, fmt.Errorf("sync pod %s/%s: step %s: %w", r.Pod.Namespace, r.Pod.Name, st.name, err)
		}
		if res.Terminal {
			break
		}
	}
	return res, nil
}

// reject lets a pod of which nothing runs fail for good: there is no place for it here.
func (s *Syncer) reject(ctx context.Context, r Request, reason, message string, res *Result) {
	s.Event(r.Pod, "", v1.EventTypeWarning, reason, message)
	r.StatusFunc = func(st *v1.PodStatus) {
		st.Phase, st.Reason, st.Message = v1.PodFailed, reason, "Pod was rejected: "+message
	}
	res.Terminal = s.report(ctx, r, stillRunning)
}

func (s *Syncer) registerObjects(_ context.Context, r Request, _ *Result) error {
	if s.Objects != nil {
		s.Objects.Register(r.Pod)
	}
	return nil
}

func (s *Syncer) makeDataDirs(_ context.Context, r Request, _ *Result) error {
	dir := s.podDir(r.UID)
	for _, d := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins")} {
		if err := s.files().Ensure(d, 0o750, 0o750); err != nil {
			s.Event(r.Pod, "", v1.EventTypeWarning, "Failed", "error making pod data directories: "+err.Error())
			return err
		}
	}
	return nil
}

func (s *Syncer) ensureCgroup(ctx context.Context, r Request, _ *Result) error {
	// What the cgroup has, not what it is to have: that comes in its order, also when an agent was killed in the middle of a resize.
	if err := s.Cgroups.EnsurePod(ctx, s.Allocations.Cgroup(r.Pod)); err != nil {
		s.Event(r.Pod, "", v1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
		return err
	}
	s.mark(r, journal.Cgroup)
	return nil
}

// prepareVolumes reads what the volumes show. Nothing is made of a pod for which something of that is missing; one whose volumes this machine has no
// room for is rejected.
func (s *Syncer) prepareVolumes(ctx context.Context, r Request, res *Result) (volumes.Inputs, error) {
	in, errs := s.Volumes.Prepare(ctx, r.Pod)
	hasVolumes := r.Observed.ReadySandbox() != nil
	full := slices.IndexFunc(errs, func(e *volumes.Error) bool { return e.Class == volumes.LimitExceeded })
	if full >= 0 && !hasVolumes {
		s.reject(ctx, r, "VolumeAttachmentLimitExceeded", errs[full].Error(), res)
		return in, nil
	}
	s.tellFailedMounts(ctx, r.Pod, errs)
	if hasVolumes {
		return in, nil // what cannot be read stays as it is, and the rest of the pod goes on
	}
	return in, errs.Err()
}

func (s *Syncer) syncRuntime(ctx context.Context, r Request, in volumes.Inputs, res *Result) error {
	v := &shownVolumes{syncer: s, request: r, inputs: in}
	stop := v.follow(ctx)
	done, err := s.Runtime.SyncPod(ctx, kuberuntime.Request{
		Pod: r.Pod, Observed: r.Observed, CgroupParent: s.Cgroups.PodParent(r.Pod), Probes: s.verdicts(r.UID), VolumeGroups: in.Groups(),
		Volumes: func(ctx context.Context) (map[string]crispec.Volume, error) {
			mounted, err := v.setUp(ctx)
			if err == nil {
				s.mark(r, journal.Volumes)
			}
			return mounted, err
		},
	})
	res.Woken = stop()
	res.Touched = done.Touched
	s.expect(r, done, res.RetryAt)
	if !done.RetryAt.IsZero() && (res.RetryAt.IsZero() || done.RetryAt.Before(res.RetryAt)) {
		res.RetryAt = done.RetryAt
	}
	failed := s.resizeFailed(r, done)
	if s.keepErrors(r.UID, done) && !res.Touched || failed {
		s.report(ctx, r, stillRunning)
	}
	if err == nil {
		err = done.ResizeError
	}
	if err == nil && !res.Touched && len(done.StartErrors) > 0 && done.RetryAt.IsZero() {
		return errors.New(describe(done.StartErrors)) // tried again like any failure
	}
	if err == nil && !v.set && in.Live() {
		_, err = v.setUp(ctx) // nothing was started; what runs is shown the newest files
	}
	return err
}

func (s *Syncer) setupVolumes(ctx context.Context, p *v1.Pod, in volumes.Inputs) (map[string]crispec.Volume, error) {
	mounted, errs := s.Volumes.Setup(ctx, p, in)
	if errs != nil {
		s.tellFailedMounts(ctx, p, errs)
		return nil, fmt.Errorf("volumes: %w", errs.Err())
	}
	s.mu.Lock()
	s.mounted[p.UID] = true
	s.mu.Unlock()
	return mounted, nil
}

// tellFailedMounts records one event per volume that failed, unless the pass was ended.
func (s *Syncer) tellFailedMounts(ctx context.Context, p *v1.Pod, errs volumes.Errors) {
	if ctx.Err() != nil {
		return
	}
	for _, e := range errs {
		s.Event(p, "", v1.EventTypeWarning, e.Reason(), e.Error())
	}
}

// SyncTerminatingPod stops everything of the pod. The status becomes final only when the runtime shows that nothing runs.
func (s *Syncer) SyncTerminatingPod(ctx context.Context, r Request) error {
	if r.Pod != nil {
		s.syncProbes(r)
		if s.Probes != nil {
			s.Probes.Terminating(r.UID)
		}
		s.report(ctx, r, stillRunning)
	}
	s.Journal.Expect(subject(r), journal.Next{
		Time: time.Now().Add(r.Grace), What: "what still runs of the pod is killed", Rule: fmt.Sprintf("its grace period is %s", r.Grace),
	})
	if err := s.killPod(ctx, r); err != nil {
		if r.Pod != nil && ctx.Err() == nil {
			s.Event(r.Pod, "", v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
		}
		return fmt.Errorf("kill pod %s: %w", r.UID, err)
	}
	after, err := s.Observe(ctx, r.UID)
	if err != nil {
		return fmt.Errorf("kill pod %s: %w", r.UID, err)
	}
	for i := range after.Containers {
		if c := &after.Containers[i]; c.State == pod.StateRunning {
			return fmt.Errorf("kill pod %s: container %q still runs after it was stopped", r.UID, c.Name)
		}
	}
	if r.Pod != nil {
		r.Observed = after
		s.syncProbes(r)
		s.report(ctx, r, ended)
	}
	return nil
}

// killPod stops everything of the pod. That may last as long as the grace period; what changes meanwhile, a container that ends or that is not
// ready any more, is reported, and what is new of objects is shown in volumes.
func (s *Syncer) killPod(ctx context.Context, r Request) error {
	if r.Pod == nil {
		return s.Runtime.KillPod(ctx, nil, r.Observed, r.Grace)
	}
	look, stop := s.showWhileEnding(ctx, r)
	defer stop()
	done := make(chan error, 1)
	go func(r Request) { done <- s.Runtime.KillPod(ctx, r.Pod, r.Observed, r.Grace) }(r)
	for {
		select {
		case err := <-done:
			return err
		case <-r.Wake:
			look()
			if now, err := s.Observe(ctx, r.UID); err == nil { // what cannot be read now is read when the pod has ended
				r.Observed = now
				s.syncProbes(r)
				s.report(ctx, r, stillRunning)
			}
		}
	}
}

// SyncTerminatedPod frees what the running pod held.
func (s *Syncer) SyncTerminatedPod(ctx context.Context, r Request) error {
	s.Journal.Expect(subject(r))
	if r.Pod != nil && !r.Refused {
		s.report(ctx, r, ended)
	}
	s.removeProbes(r.UID)
	if err := s.unlinkStrangers(r.UID); err != nil {
		return err
	}
	if err := s.Volumes.Teardown(ctx, r.UID); err != nil {
		return err
	}
	if s.Objects != nil {
		s.Objects.Unregister(r.UID)
	}
	if err := s.Cgroups.RemovePod(ctx, r.UID); err != nil {
		return fmt.Errorf("cgroup of pod %s: %w", r.UID, err)
	}
	if err := s.Runtime.ReleaseUserNamespace(r.UID); err != nil {
		return fmt.Errorf("user namespace of pod %s: %w", r.UID, err)
	}
	prune := s.Runtime.PruneDead
	if r.Evicted {
		prune = s.Runtime.RemoveContainers
	}
	if err := prune(ctx, r.Observed); err != nil {
		return fmt.Errorf("dead containers of pod %s: %w", r.UID, err)
	}
	if r.Pod != nil {
		s.Status.Terminated(r.Pod)
	}
	return nil
}

// RemovePod removes what is left of an ended pod that nobody wants to look at any more. The next pod of its UID begins anew: of
// this one it has the restart counts alone.
// Differs from the kubelet: there the next pod finds the containers too, with their back-off, and does not start at all if its
// restartPolicy is Never.
func (s *Syncer) RemovePod(ctx context.Context, r Request) error {
	observed, err := s.Observe(ctx, r.UID)
	if err != nil {
		return fmt.Errorf("remove pod %s: %w", r.UID, err)
	}
	namespace, name := observed.Namespace, observed.Name
	if r.Pod != nil {
		namespace, name = r.Pod.Namespace, r.Pod.Name
	}
	if r.Again {
		err = s.Runtime.RemovePod(ctx, observed, kuberuntime.KeepLogs)
	} else if err = s.Runtime.RemovePod(ctx, observed, kuberuntime.WithLogs); err == nil {
		err = s.Runtime.RemoveLogs(namespace, name, r.UID)
	}
	if err != nil {
		return fmt.Errorf("remove pod %s: %w", r.UID, err)
	}
	if err := s.removeDir(r.UID); err != nil {
		return fmt.Errorf("remove pod %s: %w", r.UID, err)
	}
	// So that the cache does not show what is gone, and nobody ends the pod again.
	if _, err := s.Observe(ctx, r.UID); err != nil {
		return fmt.Errorf("remove pod %s: %w", r.UID, err)
	}
	s.removeProbes(r.UID)
	s.mu.Lock()
	delete(s.errors, r.UID)
	delete(s.mounted, r.UID)
	s.mu.Unlock()
	s.Status.Remove(r.UID)
	if s.Keep != nil && (r.Pod == nil || pod.IsStatic(r.Pod)) {
		s.Keep(ctx) // now: a manifest may bring the UID back, and the next agent must not take this status for that pod's
	}
	s.Journal.Record(journal.Entry{Subject: journal.Subject{UID: r.UID, Namespace: namespace, Name: name}, Component: "worker", Decision: "pod removed: containers, sandboxes, logs and folders are gone"})
	return nil
}
