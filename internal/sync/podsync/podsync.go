// Package podsync is one pass over one pod: SyncPod, SyncTerminatingPod, SyncTerminatedPod and
// RemovePod as lists of steps.
//
// Owns: the order of the steps, the pod's folder, the last start error of each container.
// Reads: the observation that it is given; statuses through the status manager.
// Never: decides when a pass happens, or what state the pod's life is in.
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
	// Evicted: the pod ended to free capacity, so that nothing stays of its containers, sandboxes
	// and logs.
	Evicted bool
	// Refused: the pod was not admitted. Its status says why, and stays so.
	Refused bool
	// Again: a pod of the same UID follows, as its manifest was deleted and written again.
	Again bool
	// Changed has an element when the pod may have changed since the pass began. A pass that lasts
	// takes it.
	Changed <-chan struct{}
}

// Result is the outcome of SyncPod.
type Result struct {
	// Terminal: the pod has succeeded or failed; nothing of it is to run any more.
	Terminal bool
	// Why says why it is over, if not because its containers have ended.
	Why string
	// Touched: the runtime was changed; the next pass is to follow at once.
	Touched bool
	// RetryAt is when the next pass is due without any event: the end of the earliest back-off, or
	// the pod's deadline. Zero: never.
	RetryAt time.Time
}

// ContainerRuntime is what a pass needs of kuberuntime for a pod that is to run, or that ends.
type ContainerRuntime interface {
	SyncPod(ctx context.Context, r kuberuntime.Request) (kuberuntime.Result, error)
	KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error
	ReleaseUserNamespace(uid pod.UID) error
}

// Remover is what a pass needs of kuberuntime for what is left of a pod that has ended.
type Remover interface {
	PruneDead(ctx context.Context, observed *pod.Status) error
	RemovePod(ctx context.Context, observed *pod.Status, fate kuberuntime.LogFate) error
	RemoveLogs(namespace, name string, uid pod.UID) error
}

// Cgroups is what a pass needs of containerManager.
type Cgroups interface {
	EnsurePod(ctx context.Context, p *v1.Pod) error
	PodParent(p *v1.Pod) string
	RemovePod(ctx context.Context, uid pod.UID) error
}

// Volumes is what a pass needs of volumeManager: Prepare reads, Setup makes, both for a pod that is
// to run.
type Volumes interface {
	Prepare(ctx context.Context, p *v1.Pod) (volumes.Inputs, volumes.Errors)
	Setup(ctx context.Context, p *v1.Pod, in volumes.Inputs) (map[string]crispec.Volume, volumes.Errors)
	Teardown(ctx context.Context, uid pod.UID) error
}

// Objects (secretManager and configMapManager) serve registered pods what they refer to.
type Objects interface {
	Register(p *v1.Pod)
	Unregister(uid pod.UID)
}

// Probes (probeManager) probe the containers of the newest observation.
type Probes interface {
	// Sync is given each new observation of a pod that is to run, or that ends. It does not block.
	Sync(p *v1.Pod, observed *pod.Status)
	// Terminating says that the pod begins to end: only the probes go on by which others see
	// whether it still serves.
	Terminating(uid pod.UID)
	// Remove forgets the pod.
	Remove(uid pod.UID)
	// Verdicts are what the plan and the status go by.
	Verdicts(uid pod.UID) pod.ProbeVerdicts
}

// Config is what a Syncer needs.
type Config struct {
	Runtime ContainerRuntime
	Remover Remover
	Cgroups Cgroups
	Volumes Volumes
	Objects Objects
	Probes  Probes
	// Resources is nil where nothing is a pod's alone.
	Resources Resources
	Status    *status.Manager
	// Checkpoint has statuses written for the next agent as they are now, and waits until that was
	// tried; nil: there is no checkpoint.
	Checkpoint func(ctx context.Context)
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
	// MaxRestartPeriod is crashLoopBackOff.maxContainerRestartPeriod, for what is expected of
	// back-offs; 0: the default.
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
	if cfg.Resources == nil {
		cfg.Resources = nothingShared{}
	}
	if cfg.Checkpoint == nil {
		cfg.Checkpoint = func(context.Context) {}
	}
	return &Syncer{Config: cfg, errors: map[pod.UID]map[string]lifecycle.StartError{}, mounted: map[pod.UID]bool{}}
}

// SyncPod brings the pod nearer to its spec. The status of what was observed comes first: it
// decides whether the pod is over, and the API says that containers are being created before they
// are. What the pass changes in the runtime is observed, and then reported, by the next pass. At
// the end this one reports only what no observation shows: why something failed.
func (s *Syncer) SyncPod(ctx context.Context, r Request) (Result, error) {
	p := &pass{Request: r, syncer: s}
	err := p.run(ctx, "sync pod", []step{
		{name: "probes", do: p.syncProbes},
		{name: "status", do: p.reportObserved},
		{name: "objects", do: does(func() { s.Objects.Register(r.Pod) })},
		{name: "devices", do: p.prepareDevices},
		{name: "data dirs", do: p.makeDataDirs},
		{name: "cgroup", do: p.ensureCgroup},
		{name: "volume inputs", do: p.prepareVolumes},
		{name: "resource claims", do: p.prepareClaims},
		// Sandbox, mounts and images side by side, then containers in order.
		{name: "runtime", do: p.syncRuntime},
		{name: "status of failures", do: p.reportFailures, always: true},
		{name: "volumes", do: p.refreshVolumes},
	})
	return p.result, err
}

// SyncTerminatingPod stops everything of the pod. The status becomes final only when the runtime
// shows that nothing runs.
func (s *Syncer) SyncTerminatingPod(ctx context.Context, r Request) error {
	p := &pass{Request: r, syncer: s}
	return p.run(ctx, "kill pod", []step{
		{name: "probes", do: p.endProbes},
		{name: "status", do: p.reportEnding},
		{name: "containers", do: p.stopContainers},
		{name: "observation", do: p.observe},
		{name: "end of containers", do: p.checkEnd},
		{name: "last probes", do: p.endProbes},
		{name: "resources", do: p.finishResources},
		{name: "last status", do: p.reportEnd},
	})
}

// SyncTerminatedPod frees what the running pod held.
func (s *Syncer) SyncTerminatedPod(ctx context.Context, r Request) error {
	p := &pass{Request: r, syncer: s}
	p.expect()
	return p.run(ctx, "clean up pod", []step{
		{name: "status", do: p.reportEnd},
		{name: "probes", do: does(func() { s.Probes.Remove(r.UID) })},
		{name: "links", do: func(context.Context) error { return s.unlinkStrangers(r.UID) }},
		{name: "volumes", do: func(ctx context.Context) error { return s.Volumes.Teardown(ctx, r.UID) }},
		{name: "objects", do: does(func() { s.Objects.Unregister(r.UID) })},
		{name: "cgroup", do: func(ctx context.Context) error { return s.Cgroups.RemovePod(ctx, r.UID) }},
		{name: "user namespace", do: func(context.Context) error { return s.Runtime.ReleaseUserNamespace(r.UID) }},
		{name: "dead containers", do: p.pruneContainers},
		{name: "last status", do: does(p.reportTerminated)},
	})
}

// RemovePod removes what is left of an ended pod that no source has any more. The next pod of its
// UID begins anew: of this one it has the restart counts alone.
// Differs from the kubelet: there the next pod finds the containers too, with their back-off, and
// does not start at all if its restartPolicy is Never.
func (s *Syncer) RemovePod(ctx context.Context, r Request) error {
	p := &pass{Request: r, syncer: s}
	return p.run(ctx, "remove pod", []step{
		{name: "observation", do: p.observe},
		{name: "containers", do: p.removeContainers},
		{name: "folder", do: func(context.Context) error { return s.removeDir(r.UID) }},
		// It shows that nothing is left, so that nobody ends the pod again.
		{name: "last observation", do: func(ctx context.Context) error { _, err := s.Observe(ctx, r.UID); return err }},
		{name: "probes", do: does(func() { s.Probes.Remove(r.UID) })},
		{name: "status", do: p.removeStatus},
	})
}
