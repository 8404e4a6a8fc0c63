// Package kuberuntime implements pods over CRI: it plans what one pass has to do
// (computePodActions, pure) and executes the plan. Runtime is the facade; each part has an owner:
// sandboxes, starter, hookRunner, killer, remover, collector, resizer, backOffs, messages, and
// podLogs and podFiles for files on disk.
//
// Owns: sandboxes and containers of pods: their start, stop, replacement and removal; crash-loop
// back-off; container log directories.
// Reads: the observed state that the caller passes; images through the puller.
// Never: observes pods, caches pod state, decides when a pass runs.
package kuberuntime

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/action"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/images"
)

// Recorder records events.
type Recorder interface {
	// Event records an event about a container, or about the pod if container is "".
	Event(p *v1.Pod, container, eventtype, reason, message string)
	// NodeEvent records an event about the node.
	NodeEvent(eventtype, reason, message string)
}

// Assignments (containerManager) returns the node resources that are assigned to containers.
type Assignments interface {
	// Assigned returns the assigned resources that the container is created with. It fails if a
	// device is not available or not ready. It may wait for a plugin.
	Assigned(ctx context.Context, p *v1.Pod, c *v1.Container) (crispec.Assigned, error)
}

// Config configures a Runtime.
type Config struct {
	CRI    *cri.Client
	Images *images.Puller
	// Actions run lifecycle hooks.
	Actions  *action.Actions
	Recorder Recorder
	Journal  *journal.Journal
	Log      *slog.Logger
	Folders  Folders
	// HostIPs returns the node's addresses, for the downward API.
	HostIPs func() []string
	// Resources configures how container resources become kernel values.
	Resources crispec.ResourceSettings
	Cgroups   Cgroups
	// Allocations holds the resources in effect during a resize.
	Allocations *allocation.Allocations
	// Objects reads what container environments refer to.
	Objects Objects
	// Assignments are the exclusive resources of containers.
	Assignments Assignments
	Sandboxes   SandboxConfig
	Containers  ContainerConfig
	// MaxRestartPeriod is the longest crash-loop back-off
	// (crashLoopBackOff.maxContainerRestartPeriod, 1 s to 300 s); 0 is the default, 300 s.
	MaxRestartPeriod time.Duration
	// Garbage limits the retained dead containers.
	Garbage GarbageLimits
	// Pods returns the last observation of every pod in the runtime. It must not block.
	Pods func() []*pod.Status
	// HasEnded reports whether all containers of a pod have terminated for good and are retained
	// only for inspection. It must not block.
	HasEnded func(uid pod.UID) bool
	// Metrics is the registry for metrics; nil: they are not registered.
	Metrics prometheus.Registerer
}

// Folders are the locations of pod files.
type Folders struct {
	// Root is the agent's root directory: pods/<uid> below it holds a pod's files, seccomp/ the
	// Localhost profiles.
	Root string
	// PodLogs is the directory of pod logs (KubeletConfiguration podLogsDir).
	PodLogs string
	// ContainerLogs is the directory of the links that log shippers read (/var/log/containers); ""
	// creates no links.
	ContainerLogs string
}

// SandboxConfig configures the creation of sandboxes.
type SandboxConfig struct {
	// Handler returns the runtime handler of a pod without RuntimeClass, "" for the runtime's
	// default, and the reason if it differs from that of most pods. It is called for each sandbox
	// creation.
	Handler func(p *v1.Pod) (handler, why string)
	// DNS is the node's DNS configuration. Its Host is read from ResolvConf for each sandbox
	// creation.
	DNS crispec.DNS
	// ResolvConf is the resolver configuration that pods inherit (KubeletConfiguration resolvConf):
	// nil is the host's, "" none.
	ResolvConf *string
	// UserNamespaces allocates user ID ranges.
	UserNamespaces UserNamespaces
	// CheckHostPorts returns an error if a process of the host uses a host port of the pod. It is
	// called for each sandbox creation.
	CheckHostPorts func(p *v1.Pod) error
}

// ContainerConfig configures the creation of containers.
type ContainerConfig struct {
	// Volumes prepares subPath mounts.
	Volumes Volumes
	// ExecLimits are the kernel's limits on arguments and environment variables.
	ExecLimits crispec.ExecLimits
	// SeccompDefault applies the runtime's default seccomp profile to containers without one
	// (KubeletConfiguration seccompDefault).
	SeccompDefault bool
	// WritesLogs reports whether the shims of a handler write container logs instead of the
	// runtime.
	WritesLogs func(handler string) bool
	// Allocatable returns the node's allocatable resources, for environment variables that show
	// unset limits.
	Allocatable func() v1.ResourceList
}

// Runtime acts on pods through CRI (the kubelet's containerRuntime). It decides what a pass does,
// and delegates to the owner of each part.
type Runtime struct {
	report      reporter
	metrics     *metrics
	allocations *allocation.Allocations
	backOffs    *backOffs
	images      imageFetcher
	users       UserNamespaces
	resolver    *resolver
	sandboxes   *sandboxes
	starter     *starter
	hooks       *hookRunner
	killer      *killer
	resizer     *resizer
	remover     *remover
	garbage     *collector
	messages    *messages
	logs        *podLogs
}

// New returns a Runtime.
func New(cfg Config) *Runtime {
	r := &Runtime{
		report: reporter{cfg.Recorder, cfg.Journal, cfg.Log}, metrics: newMetrics(cfg.Metrics), allocations: cfg.Allocations,
		images: imageFetcher{cfg.Images}, users: cfg.Sandboxes.UserNamespaces,
	}
	files := podFiles{safepath.Root(cfg.Folders.Root)}
	r.logs = &podLogs{dir: cfg.Folders.PodLogs, linkDir: cfg.Folders.ContainerLogs, log: cfg.Log}
	r.messages = &messages{files: files, texts: map[pod.ContainerID]string{}}
	r.backOffs = newBackOffs(cfg.Recorder, cfg.MaxRestartPeriod)
	r.hooks = newHookRunner(cfg, files)
	r.killer = &killer{report: r.report, cri: cfg.CRI, cgroups: cfg.Cgroups, hooks: r.hooks}
	r.remover = &remover{
		cri: cfg.CRI, killer: r.killer, hooks: r.hooks, messages: r.messages, files: files, logs: r.logs,
	}
	r.garbage = &collector{
		limits: cfg.Garbage, pods: cfg.Pods, hasEnded: cfg.HasEnded, remover: r.remover, events: cfg.Recorder, journal: cfg.Journal,
	}
	r.resizer = &resizer{
		report: r.report, cri: cfg.CRI, cgroups: cfg.Cgroups, allocations: cfg.Allocations, resources: cfg.Resources,
	}
	node := &nodeWarner{events: cfg.Recorder}
	r.resolver = &resolver{path: cfg.Sandboxes.ResolvConf, dns: cfg.Sandboxes.DNS, hostIPs: cfg.HostIPs, node: node}
	r.sandboxes = newSandboxes(cfg, r, node)
	r.starter = newStarter(cfg, r, files)
	return r
}

// Request is the input of one pass over a running pod.
type Request struct {
	Pod      *v1.Pod
	Observed *pod.Status
	// Probes are the probe results of the containers in Observed.
	Probes pod.ProbeVerdicts
	// CgroupParent is the pod's cgroup in the cgroup driver's format.
	CgroupParent string
	// VolumeGroups are the supplemental groups that the pod's volumes require.
	VolumeGroups []int64
	// Volumes waits for the pod's mounts. It is called concurrently with the creation of the
	// sandbox and before the first container starts.
	Volumes func(ctx context.Context) (map[string]crispec.Volume, error)
	// Ended records the exit of a container that is about to be removed, which no observation will
	// show; nil: it is not recorded.
	Ended func(ctx context.Context, cs *pod.ContainerStatus)
}

// Result is the outcome of a pass.
type Result struct {
	// Touched: something changed in the runtime; the pod must be observed again.
	Touched bool
	// StartErrors has the errors of containers that could not be started, by name. Started has the
	// names of the containers that were started.
	StartErrors map[string]lifecycle.StartError
	Started     []string
	// RetryAt is when the earliest back-off expires; zero if none is active.
	RetryAt time.Time
	// ResizeError is why the pod's resize is incomplete; nil if it is complete, or if there is
	// none.
	ResizeError error
}

func (r *Result) failed(name string, e lifecycle.StartError) {
	if r.StartErrors == nil {
		r.StartErrors = map[string]lifecycle.StartError{}
	}
	r.StartErrors[name] = e
	r.retry(e.BackOffUntil)
}

// retry requests another pass at the given time; zero requests none.
func (r *Result) retry(at time.Time) {
	if !at.IsZero() && (r.RetryAt.IsZero() || at.Before(r.RetryAt)) {
		r.RetryAt = at
	}
}

func subject(p *v1.Pod) journal.Subject {
	return journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}

// reporter reports actions on pods: events for users, journal decisions, log lines for operators.
type reporter struct {
	events  Recorder
	journal *journal.Journal
	log     *slog.Logger
}

type decision struct {
	pod       *v1.Pod
	container string // "" for the pod
	what, why string
	failed    string    // replaces what if err is not nil; "" is what
	began     time.Time // start of the step; zero if it takes no time
	err       error
}

func (r reporter) record(d decision) {
	if d.err != nil && d.failed != "" {
		d.what = d.failed
	}
	e := journal.Entry{
		Subject: subject(d.pod), Component: "runtime", Container: d.container, Decision: d.what, Why: d.why,
		Error: journal.Error(d.err),
	}
	if !d.began.IsZero() {
		e.Took = time.Since(d.began).Round(10 * time.Microsecond)
	}
	r.journal.Record(e)
}

// Run runs preStop hooks until ctx is done, and returns when all have terminated.
func (r *Runtime) Run(ctx context.Context) error { return r.hooks.run(ctx) }

// CheckResolvConf records an event if the node's resolver configuration exceeds the limits of pods
// or cannot be read.
func (r *Runtime) CheckResolvConf() { r.resolver.check() }

// WithTerminationMessages returns the observation with the termination messages of exited
// containers. Each message is read once.
func (r *Runtime) WithTerminationMessages(ctx context.Context, s *pod.Status) *pod.Status {
	return r.messages.with(ctx, s)
}

// KillPod stops every container of the pod within grace and then its sandboxes. Containers stop
// concurrently, but a sidecar waits for the regular containers and the sidecars after it, for at
// most the grace period; its preStop hook does not wait. p is nil for a pod that only the runtime
// has. With a grace of 0, no preStop hook runs. No container of the pod may be started afterwards;
// if the error is nil, none is running. Idempotent.
func (r *Runtime) KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	r.images.forget(observed.UID)
	return r.killer.killPod(ctx, p, observed, grace)
}

// PruneDead removes the terminated containers of a pod above GarbageLimits, and its unused
// sandboxes. It is for pods with no running containers; SyncPod does the same at the end of each
// pass.
func (r *Runtime) PruneDead(ctx context.Context, observed *pod.Status) error {
	var res Result
	return r.garbage.collect(ctx, observed, &res)
}

// RemovePod removes every container and sandbox of the pod. None may be running. With KeepLogs, one
// log of each container is retained, so that a pod with the same UID continues its restart counts.
// Idempotent.
func (r *Runtime) RemovePod(ctx context.Context, observed *pod.Status, fate LogFate) error {
	r.backOffs.forget(observed.UID)
	if err := r.remover.removeContainers(ctx, observed, fate); err != nil {
		return err
	}
	for i := range observed.Sandboxes {
		if err := r.remover.removeSandbox(ctx, observed.Sandboxes[i].ID); err != nil {
			return err
		}
	}
	return r.users.Release(observed.UID)
}

// RemoveDead removes terminated containers and sandboxes of all pods to reclaim disk space,
// regardless of GarbageLimits: of running pods, all terminated containers except the newest of each
// name; of terminated pods, everything. The container logs are removed too. Failures are skipped; a
// node event reports the first until all removals succeed again. Calls must not overlap.
func (r *Runtime) RemoveDead(ctx context.Context) error { return r.garbage.removeDead(ctx) }

// RemoveLogs removes the log directories of the pod, and the log shipper links into them. There is
// one directory for each name that the UID had: a manifest with a fixed UID may have been renamed
// while no agent was running. Without a name, directories are found by UID.
func (r *Runtime) RemoveLogs(namespace, name string, uid pod.UID) error {
	return r.logs.remove(namespace, name, uid)
}

// OnDisk returns the pods that have a log directory. It is called once, when the agent starts.
func (r *Runtime) OnDisk() ([]pod.UID, error) { return r.logs.onDisk() }

// ReleaseUserNamespace releases the user ID range of a pod with no running containers.
func (r *Runtime) ReleaseUserNamespace(uid pod.UID) error { return r.users.Release(uid) }
