// Package podsync is one pass over one pod: SyncPod, SyncTerminatingPod, SyncTerminatedPod and
// RemovePod as lists of steps.
//
// Owns: the order of the steps, the pod's directory, the last start error of each container.
// Reads: the observed state in the request; statuses through the status manager.
// Never: decides when a pass runs, or which lifecycle state the pod is in.
package podsync

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/storage/volumes"
)

// Request is the input of one pass.
type Request struct {
	UID pod.UID
	// Pod is nil for a pod that exists only in the runtime or on disk.
	Pod      *v1.Pod
	Observed *pod.Status
	// Grace is the grace period of a terminating pod's containers.
	Grace time.Duration
	// StatusFunc, if not nil, changes the pod's final status.
	StatusFunc func(*v1.PodStatus)
	// Evicted: the pod was terminated to free capacity, so its containers, sandboxes and logs are
	// removed.
	Evicted bool
	// Refused: the pod was not admitted. Its status has the reason and does not change.
	Refused bool
	// Again: a pod with the same UID follows, since its manifest was deleted and recreated.
	Again bool
	// Changed has an element when the pod may have changed since the pass began. A long pass
	// receives from it.
	Changed <-chan struct{}
}

// Result is the outcome of SyncPod.
type Result struct {
	// Terminal: the pod has succeeded or failed; none of its containers is to run.
	Terminal bool
	// Why is the reason of a terminal pod, if it is not that its containers have exited.
	Why string
	// Touched: the runtime was changed; the next pass follows at once.
	Touched bool
	// RetryAt is when the next pass is due without an event: the end of the earliest back-off, or
	// the pod's deadline. Zero: never.
	RetryAt time.Time
}

// ContainerRuntime is the part of kuberuntime that runs and terminates pods.
type ContainerRuntime interface {
	SyncPod(ctx context.Context, r kuberuntime.Request) (kuberuntime.Result, error)
	KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error
	ReleaseUserNamespace(uid pod.UID) error
}

// Remover is the part of kuberuntime that removes what remains of terminated pods.
type Remover interface {
	PruneDead(ctx context.Context, observed *pod.Status) error
	RemovePod(ctx context.Context, observed *pod.Status, fate kuberuntime.LogFate) error
	RemoveLogs(namespace, name string, uid pod.UID) error
}

// Cgroups is the part of containerManager that a pass uses.
type Cgroups interface {
	EnsurePod(ctx context.Context, p *v1.Pod) error
	PodParent(p *v1.Pod) string
	RemovePod(ctx context.Context, uid pod.UID) error
}

// Volumes is the part of volumeManager that a pass uses. Prepare reads a pod's volume inputs, Setup
// mounts the volumes, Teardown unmounts them.
type Volumes interface {
	Prepare(ctx context.Context, p *v1.Pod) (volumes.Inputs, volumes.Errors)
	Setup(ctx context.Context, p *v1.Pod, in volumes.Inputs) (map[string]crispec.Volume, volumes.Errors)
	Teardown(ctx context.Context, uid pod.UID) error
}

// Objects (secretManager and configMapManager) provide the API objects that registered pods refer
// to.
type Objects interface {
	Register(p *v1.Pod)
	Unregister(uid pod.UID)
}

// Probes (probeManager) probe the containers of the newest observed state.
type Probes interface {
	// Sync receives each new observed state of a running or terminating pod. It does not block.
	Sync(p *v1.Pod, observed *pod.Status)
	// Terminating reports that the pod is terminating: only the probes continue whose results show
	// clients whether the pod still serves.
	Terminating(uid pod.UID)
	// Remove drops the pod's probes and results.
	Remove(uid pod.UID)
	// Verdicts returns the probe results that the plan and the status use.
	Verdicts(uid pod.UID) pod.ProbeVerdicts
}

// Config holds the dependencies of a Syncer.
type Config struct {
	Runtime   ContainerRuntime
	Remover   Remover
	Cgroups   Cgroups
	Volumes   Volumes
	Objects   Objects
	Probes    Probes
	Resources Resources
	Status    *status.Manager
	// Checkpoint persists the current statuses and returns after the attempt.
	Checkpoint func(ctx context.Context)
	// Allocations tracks the resizes of pods.
	Allocations *allocation.Allocations
	// Observe reads the current state of the pod.
	Observe func(ctx context.Context, uid pod.UID) (*pod.Status, error)
	// WithTerminationMessages adds the termination messages of exited containers.
	WithTerminationMessages func(ctx context.Context, s *pod.Status) *pod.Status
	Event                   func(p *v1.Pod, container, eventtype, reason, message string)
	Journal                 *journal.Journal
	Log                     *slog.Logger
	RootDir                 string
	// RuntimeName returns the prefix of container IDs in statuses: "containerd".
	RuntimeName func() string
	// HostIPs returns the node's addresses, primary first.
	HostIPs func() []string
	// MaxRestartPeriod is crashLoopBackOff.maxContainerRestartPeriod, for the expected back-offs in
	// the journal; 0: the default.
	MaxRestartPeriod time.Duration
}

// Syncer runs passes. Passes of different pods run concurrently; those of one pod never overlap.
type Syncer struct {
	Config
	state podState
}

// podState is what passes leave for later passes of the same pod.
type podState struct {
	mu          sync.Mutex
	startErrors map[pod.UID]map[string]lifecycle.StartError // guarded by mu; by container name
	mounted     map[pod.UID]bool                            // guarded by mu; this agent has set up the volumes
}

// New returns a Syncer.
func New(cfg Config) *Syncer {
	return &Syncer{Config: cfg, state: podState{startErrors: map[pod.UID]map[string]lifecycle.StartError{}, mounted: map[pod.UID]bool{}}}
}

// SyncPod brings the pod closer to its spec. It reports the observed state first: that decides
// whether the pod is terminal, and the API shows containers as being created before they are. The
// next pass observes and reports what this one changes in the runtime. At its end, the pass reports
// only what cannot be observed: the reasons of failures.
func (s *Syncer) SyncPod(ctx context.Context, r Request) (Result, error) {
	p := &syncPass{Request: r, syncer: s}
	err := runSteps(ctx, "sync pod", &p.Request, []step{
		{name: "probes", do: p.syncProbes},
		{name: "status", do: p.reportObserved},
		{name: "objects", do: does(func() { s.Objects.Register(r.Pod) })},
		{name: "devices", do: p.prepareDevices},
		{name: "data dirs", do: p.makeDataDirs},
		{name: "cgroup", do: p.ensureCgroup},
		{name: "volume inputs", do: p.prepareVolumes},
		{name: "resource claims", do: p.prepareClaims},
		// Sandbox, mounts and images concurrently, then containers in order.
		{name: "runtime", do: p.syncRuntime},
		{name: "status of failures", do: p.reportFailures, always: true},
		{name: "volumes", do: p.refreshVolumes},
	})
	return p.result, err
}

// SyncTerminatingPod stops all containers and the sandbox. The status becomes final only when the
// runtime shows that nothing runs.
func (s *Syncer) SyncTerminatingPod(ctx context.Context, r Request) error {
	p := &endPass{Request: r, syncer: s}
	return runSteps(ctx, "kill pod", &p.Request, []step{
		{name: "probes", do: p.terminateProbes},
		{name: "status", do: p.reportTerminating},
		{name: "containers", do: p.stopContainers},
		{name: "observation", do: p.observe},
		{name: "end of containers", do: p.checkEnd},
		{name: "last probes", do: p.terminateProbes},
		{name: "resources", do: p.finishResources},
		{name: "last status", do: p.reportEnd},
	})
}

// SyncTerminatedPod releases the pod's volumes, cgroup and user namespace.
func (s *Syncer) SyncTerminatedPod(ctx context.Context, r Request) error {
	p := &endPass{Request: r, syncer: s}
	s.Journal.Expect(subjectOf(&p.Request))
	return runSteps(ctx, "clean up pod", &p.Request, []step{
		{name: "status", do: p.reportEnd},
		{name: "probes", do: does(func() { s.Probes.Remove(r.UID) })},
		{name: "links", do: func(context.Context) error { return s.unlinkSymlinks(r.UID) }},
		{name: "volumes", do: func(ctx context.Context) error { return s.Volumes.Teardown(ctx, r.UID) }},
		{name: "objects", do: does(func() { s.Objects.Unregister(r.UID) })},
		{name: "cgroup", do: func(ctx context.Context) error { return s.Cgroups.RemovePod(ctx, r.UID) }},
		{name: "user namespace", do: func(context.Context) error { return s.Runtime.ReleaseUserNamespace(r.UID) }},
		{name: "dead containers", do: p.pruneContainers},
		{name: "last status", do: does(p.reportTerminated)},
	})
}

// RemovePod removes what remains of a terminated pod that was removed from its source. A later pod
// with this UID starts from scratch, except for the restart counts.
// Differs from the kubelet: there the next pod also inherits the containers with their back-off,
// and does not start at all if its restartPolicy is Never.
func (s *Syncer) RemovePod(ctx context.Context, r Request) error {
	p := &endPass{Request: r, syncer: s}
	return runSteps(ctx, "remove pod", &p.Request, []step{
		{name: "observation", do: p.observe},
		{name: "containers", do: p.removeContainers},
		{name: "folder", do: func(context.Context) error { return s.removeDir(r.UID) }},
		// It shows that nothing remains, so that housekeeping does not terminate the pod again.
		{name: "last observation", do: func(ctx context.Context) error { _, err := s.Observe(ctx, r.UID); return err }},
		{name: "probes", do: does(func() { s.Probes.Remove(r.UID) })},
		{name: "status", do: p.removeStatus},
	})
}
