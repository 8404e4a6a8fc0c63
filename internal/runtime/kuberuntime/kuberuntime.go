// Package kuberuntime makes a pod real: it plans what one pass has to do (computePodActions, pure)
// and does it over the runtime. Runtime is the face; each part has an owner: sandboxes, starter,
// hookRunner, killer, remover, collector, resizer, backOffs, messages, and podLogs and podFiles for
// what is on disk.
//
// Owns: sandboxes and containers of pods: their start, stop, replacement and removal; crash-loop
// back-off; container log folders.
// Reads: the observation that it is given; images through the puller.
// Never: observes by itself, keeps a truth about pods, decides when a pass happens.
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

// Recorder records events; container is "" for an event about the pod.
type Recorder interface {
	Event(p *v1.Pod, container, eventtype, reason, message string)
}

// Assignments (containerManager) say what of the node is given to containers.
type Assignments interface {
	// Assigned returns what the container is to be created with. An error says why it cannot be
	// now: a device is not there yet, or is not ready. It may wait for a plugin.
	Assigned(ctx context.Context, p *v1.Pod, c *v1.Container) (crispec.Assigned, error)
}

type noAssignments struct{}

func (noAssignments) Assigned(context.Context, *v1.Pod, *v1.Container) (crispec.Assigned, error) {
	return crispec.Assigned{}, nil
}

// Config is what a Runtime needs.
type Config struct {
	CRI    *cri.Client
	Images *images.Puller
	// Actions carry out lifecycle hooks; without them every hook fails.
	Actions  *action.Actions
	Recorder Recorder
	Journal  *journal.Journal
	Log      *slog.Logger
	Folders  Folders
	// HostIPs returns the node's addresses, for the downward API.
	HostIPs func() []string
	// Resources say how containers' resources become values of the kernel.
	Resources crispec.ResourceSettings
	// Cgroups are those of pods.
	Cgroups Cgroups
	// Allocations say which resources of a pod hold while it is resized; nil: no pod is.
	Allocations *allocation.Allocations
	// Objects are what environments refer to.
	Objects Objects
	// Assignments say what of the node is a container's alone; nil: nothing is.
	Assignments Assignments
	Sandboxes   SandboxConfig
	Containers  ContainerConfig
	// MaxRestartPeriod is the longest crash-loop back-off
	// (crashLoopBackOff.maxContainerRestartPeriod, 1 s to 300 s); 0 is the default, 300 s.
	MaxRestartPeriod time.Duration
	// Garbage limits the dead containers that stay.
	Garbage GarbageLimits
	// Pods returns what the runtime has of every pod, as last observed; nil: Garbage.MaxTotal is
	// not enforced, and RemoveDead does nothing. It must not block.
	Pods func() []*pod.Status
	// HasEnded reports whether all containers of a pod have ended for good, and are only there to
	// be looked at; nil: of none they are. It must not block.
	HasEnded func(uid pod.UID) bool
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}

// Folders are where the files of pods are.
type Folders struct {
	// Root is the agent's root: pods/<uid> below it holds a pod's files, seccomp/ the Localhost
	// profiles.
	Root string
	// PodLogs is the folder of pod logs (KubeletConfiguration podLogsDir).
	PodLogs string
	// ContainerLogs is the folder of the links that log shippers read (/var/log/containers); ""
	// makes no links.
	ContainerLogs string
}

// SandboxConfig is what sandboxes are made with.
type SandboxConfig struct {
	// Handler returns the runtime's handler for a pod that names no RuntimeClass, "" for the one
	// that the runtime takes then, and why, if it is another one than that of most pods. It is
	// called each time a sandbox is made; nil is the runtime's.
	Handler func(p *v1.Pod) (handler, why string)
	// DNS is what the node knows of name resolution. Its Host is read from ResolvConf each time a
	// sandbox is made.
	DNS crispec.DNS
	// ResolvConf is the resolver configuration that pods inherit (KubeletConfiguration resolvConf):
	// nil is the host's, "" none.
	ResolvConf *string
	// UserNamespaces gives pods their ranges of user ids; nil: pods that want one cannot run.
	UserNamespaces UserNamespaces
	// CheckHostPorts returns an error if a program of the machine uses a host port of the pod; nil:
	// none does. It is called each time a sandbox is made.
	CheckHostPorts func(p *v1.Pod) error
	// NodeEvent records an event about the node; nil records none.
	NodeEvent func(eventtype, reason, message string)
}

// ContainerConfig is what containers are made with.
type ContainerConfig struct {
	// Volumes gives containers what is in their volumes.
	Volumes Volumes
	// ExecLimits are what the kernel takes of containers' arguments and variables.
	ExecLimits crispec.ExecLimits
	// SeccompDefault gives containers that name no seccomp profile the runtime's
	// (KubeletConfiguration seccompDefault).
	SeccompDefault bool
	// WritesLogs reports whether those who run the containers of a handler write their logs, and
	// not the runtime; nil: none do.
	WritesLogs func(handler string) bool
	// Allocatable returns what the node has for pods, for environments that show limits which are
	// not set; nil: it is not known.
	Allocatable func() v1.ResourceList
}

// Runtime acts on pods through CRI (containerRuntime of the literature). It decides what a pass
// does, and has it done by the owner of each part.
type Runtime struct {
	reporter
	metrics     *metrics
	allocations *allocation.Allocations
	backOffs    *backOffs
	images      imageFetcher
	users       *userNamespaces
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
	if cfg.Allocations == nil {
		cfg.Allocations = allocation.New(allocation.Config{})
	}
	if cfg.Assignments == nil {
		cfg.Assignments = noAssignments{}
	}
	r := &Runtime{
		reporter: reporter{cfg.Recorder, cfg.Journal, cfg.Log}, metrics: newMetrics(cfg.Metrics), allocations: cfg.Allocations,
		images: imageFetcher{cfg.Images}, users: &userNamespaces{cfg.Sandboxes.UserNamespaces},
	}
	files := podFiles{safepath.Root(cfg.Folders.Root)}
	r.logs = &podLogs{dir: cfg.Folders.PodLogs, linkDir: cfg.Folders.ContainerLogs, log: cfg.Log}
	r.messages = &messages{files: files, texts: map[pod.ContainerID]string{}}
	r.backOffs = newBackOffs(cfg.Recorder, cfg.MaxRestartPeriod)
	r.hooks = newHookRunner(cfg, files)
	r.killer = &killer{reporter: r.reporter, cri: cfg.CRI, cgroups: cfg.Cgroups, hooks: r.hooks}
	r.remover = &remover{
		cri: cfg.CRI, killer: r.killer, hooks: r.hooks, messages: r.messages, files: files, logs: r.logs,
	}
	r.garbage = newCollector(cfg, r)
	r.resizer = &resizer{
		reporter: r.reporter, cri: cfg.CRI, cgroups: cfg.Cgroups, allocations: cfg.Allocations, resources: cfg.Resources,
	}
	node := newNodeWarner(cfg.Sandboxes.NodeEvent)
	r.resolver = &resolver{path: cfg.Sandboxes.ResolvConf, dns: cfg.Sandboxes.DNS, hostIPs: cfg.HostIPs, node: node}
	r.sandboxes = newSandboxes(cfg, r, node)
	r.starter = newStarter(cfg, r, files)
	return r
}

// Request is one pass over a running pod.
type Request struct {
	Pod      *v1.Pod
	Observed *pod.Status
	// Probes are the verdicts on the containers of Observed.
	Probes pod.ProbeVerdicts
	// CgroupParent is the pod's cgroup in the form of the cgroup driver.
	CgroupParent string
	// VolumeGroups are those that the pod's processes must be in to use its volumes.
	VolumeGroups []int64
	// Volumes waits for the pod's mounts. It is called beside the creation of the sandbox and
	// before the first container.
	Volumes func(ctx context.Context) (map[string]crispec.Volume, error)
	// Ended takes note of how a container ended that is about to be removed, so that no observation
	// shows its end; nil: nobody wants to know.
	Ended func(ctx context.Context, cs *pod.ContainerStatus)
}

// Result is what a pass did.
type Result struct {
	// Touched: something changed in the runtime, so that the pod is to be observed again.
	Touched bool
	// StartErrors of the containers that should run and could not be started, and containers that
	// were started (with a zero error).
	StartErrors map[string]lifecycle.StartError
	Started     []string
	// RetryAt is when the earliest back-off ends; zero when nothing waits for time.
	RetryAt time.Time
	// ResizeError is why the pod's resize is not done; nil if it is, or if there is none.
	ResizeError error
}

func (r *Result) failed(name string, e lifecycle.StartError) {
	if r.StartErrors == nil {
		r.StartErrors = map[string]lifecycle.StartError{}
	}
	r.StartErrors[name] = e
	r.retry(e.BackOffUntil)
}

// retry asks for another pass at the given time; zero asks for none.
func (r *Result) retry(at time.Time) {
	if !at.IsZero() && (r.RetryAt.IsZero() || at.Before(r.RetryAt)) {
		r.RetryAt = at
	}
}

func subject(p *v1.Pod) journal.Subject {
	return journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}

// reporter says what is done to pods: events to users, entries of the journal, the log to
// operators.
type reporter struct {
	events  Recorder
	journal *journal.Journal
	log     *slog.Logger
}

// decision is one entry of a pod's journal.
type decision struct {
	pod       *v1.Pod
	container string // "" for the pod
	what, why string
	failed    string    // what it is called when there is an err; "" is what
	began     time.Time // when the step began; zero for what takes no time
	err       error
}

func (r reporter) note(d decision) {
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

// Run lets preStop hooks run beside passes until ctx is done; they have ended when it returns.
func (r *Runtime) Run(ctx context.Context) error { return r.hooks.run(ctx) }

// CheckResolvConf records an event about a resolver of the node that is more than pods can be
// given, or that cannot be read.
func (r *Runtime) CheckResolvConf() { r.resolver.check() }

// WithTerminationMessages returns the observation with the messages that exited containers left. A
// message is read once.
func (r *Runtime) WithTerminationMessages(ctx context.Context, s *pod.Status) *pod.Status {
	return r.messages.with(ctx, s)
}

// KillPod stops every container of the pod within grace and then its sandboxes. Containers stop
// side by side, but a sidecar waits for the regular containers and for the sidecars after it, as
// long as the grace period lasts; its preStop hook does not wait. p is nil for a pod that only the
// runtime knows. With a grace of 0, no preStop hook runs. Nothing of the pod is to be started any
// more, and nothing of it runs when the error is nil. Idempotent.
func (r *Runtime) KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	r.images.forget(observed.UID)
	return r.killer.endPod(ctx, p, observed, grace)
}

// PruneDead removes the ended containers of a pod beyond those that stay, and its sandboxes that
// nothing needs. It is for a pod of which nothing runs any more; SyncPod does the same at the end
// of each pass.
func (r *Runtime) PruneDead(ctx context.Context, observed *pod.Status) error {
	var res Result
	return r.garbage.collect(ctx, observed, &res)
}

// RemovePod removes every container and sandbox of the pod. Nothing of it may run any more. With
// KeepLogs one log of each container stays, so that the restarts of a pod with the same UID go on
// being counted from there. Idempotent.
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
	return r.users.release(observed.UID)
}

// RemoveDead removes what has ended of all pods, as for a node that runs out of disk: of pods that
// go on, all ended containers but the newest of each name, whatever GarbageLimits let stay; of pods
// that have ended, every container and sandbox. The logs of the containers go too. What cannot be
// removed is left out; an event of the node tells of it, once until nothing fails any more. Calls
// must not overlap.
func (r *Runtime) RemoveDead(ctx context.Context) error { return r.garbage.removeDead(ctx) }

// RemoveLogs removes the log folders of the pod, and the links of log shippers that lead into them.
// There is one for each name that the UID had: a manifest that gives its pod a UID may have been
// renamed while no agent ran. Without a name, folders are found by the UID.
func (r *Runtime) RemoveLogs(namespace, name string, uid pod.UID) error {
	return r.logs.remove(namespace, name, uid)
}

// OnDisk returns the pods that have a log folder. It is called once, when the agent begins.
func (r *Runtime) OnDisk() ([]pod.UID, error) { return r.logs.onDisk() }

// ReleaseUserNamespace gives back the ids of a pod of which nothing runs any more.
func (r *Runtime) ReleaseUserNamespace(uid pod.UID) error { return r.users.release(uid) }
