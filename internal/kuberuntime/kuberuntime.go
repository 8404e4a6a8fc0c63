// Package kuberuntime makes a pod real: it plans what one pass has to do (computePodActions, pure) and does it over the runtime.
//
// Owns: sandboxes and containers of pods: their start, stop, replacement and removal; crash-loop back-off; container log folders.
// Reads: the observation that it is given; images through the puller.
// Never: observes by itself, keeps a truth about pods, decides when a pass happens.
package kuberuntime

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/action"
	"berth/internal/allocation"
	"berth/internal/cri"
	"berth/internal/crispec"
	"berth/internal/images"
	"berth/internal/journal"
	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// Recorder records events; container is "" for an event about the pod.
type Recorder interface {
	Event(p *v1.Pod, container, eventtype, reason, message string)
}

// Config is what a Runtime needs.
type Config struct {
	CRI *cri.Client
	// Actions carry out lifecycle hooks; without them every hook fails.
	Actions  *action.Actions
	Images   *images.Puller
	Recorder Recorder
	Journal  *journal.Journal
	Log      *slog.Logger
	// RootDir is the agent's root: pods/<uid> below it holds a pod's files, seccomp/ the Localhost profiles.
	RootDir string
	// PodLogsDir is the folder of pod logs (KubeletConfiguration podLogsDir), ContainerLogsDir the one of the links that log shippers
	// read (/var/log/containers); "" makes no links.
	PodLogsDir, ContainerLogsDir string
	// Resources are what the kernel is told of containers' resources by.
	Resources crispec.ResourceSettings
	// ExecLimits are what the kernel takes of containers' arguments and variables.
	ExecLimits crispec.ExecLimits
	// HostIPs returns the node's addresses, for the downward API.
	HostIPs func() []string
	// DNS is what the node knows of name resolution. Its Host is read from ResolvConf each time a sandbox is made.
	DNS crispec.DNS
	// ResolvConf is the resolver configuration that pods inherit (KubeletConfiguration resolvConf): nil is the host's, "" none.
	ResolvConf *string
	// SeccompDefault gives containers that name no seccomp profile the runtime's (KubeletConfiguration seccompDefault).
	SeccompDefault bool
	// UserNamespaces gives pods their ranges of user ids; nil: pods that want one cannot run.
	UserNamespaces UserNamespaces
	// CheckHostPorts returns an error if a program of the machine uses a host port of the pod; nil: none does. It is asked each time a
	// sandbox is made.
	CheckHostPorts func(p *v1.Pod) error
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	// NodeEvent records an event about the node; nil records none.
	NodeEvent func(eventtype, reason, message string)
	// Volumes gives containers what is in their volumes.
	Volumes Volumes
	// Cgroups are those of pods.
	Cgroups Cgroups
	// Allocations say which resources of a pod hold while it is resized; nil: no pod is.
	Allocations *allocation.Allocations
	// Objects are what environments refer to; nil without an API server.
	Objects Objects
	// Allocatable returns what the node has for pods, for environments that show limits which are not set; nil: it is not known.
	Allocatable func() v1.ResourceList
	// MaxRestartPeriod is the longest crash-loop back-off (crashLoopBackOff.maxContainerRestartPeriod, 1 s to 300 s); 0 is the default, 300 s.
	MaxRestartPeriod time.Duration
	// Garbage limits the dead containers that are kept.
	Garbage GarbageLimits
	// Pods returns what the runtime has of every pod, as last observed; nil: Garbage.MaxTotal is not enforced. It must not block.
	Pods func() []*pod.Status
}

// Runtime acts on pods through CRI (containerRuntime of the literature).
type Runtime struct {
	Config
	metrics     *metrics
	crash       *lifecycle.CrashLoop
	nodeBackOff lifecycle.BackOff

	// starting bounds sandbox creations under way: containerd is saturated by a few, and more only make each slower.
	starting chan struct{}

	// maskedPaths are the files of this machine that containers must not see; read once.
	maskedPaths func() []string

	nodeWarnings sync.Map // set of string: what the node's events were told already; there are a few

	mu       sync.Mutex
	messages map[pod.ContainerID]string   // guarded by mu; termination messages of exited containers
	preStops map[pod.ContainerID]*hookRun // guarded by mu
	leaving  bool                         // guarded by mu; Run ended: no hook begins any more
	backOffs map[pod.UID]string           // guarded by mu; the back-off annotations that were looked at
	oldLogs  map[pod.UID][]string         // guarded by mu; log folders that were there when the agent began, of pods that are still

	hooks sync.WaitGroup // preStop hooks under way
}

// New returns a Runtime.
func New(cfg Config) *Runtime {
	if cfg.Allocations == nil {
		cfg.Allocations = allocation.New(allocation.Config{})
	}
	return &Runtime{
		Config: cfg, metrics: newMetrics(cfg.Metrics), crash: lifecycle.NewCrashLoop(), nodeBackOff: lifecycle.NodeBackOff(cfg.MaxRestartPeriod),
		starting: make(chan struct{}, parallelSandboxes), messages: map[pod.ContainerID]string{},
		preStops: map[pod.ContainerID]*hookRun{}, backOffs: map[pod.UID]string{}, maskedPaths: sync.OnceValue(thermalThrottles),
	}
}

// parallelSandboxes is where containerd's throughput stops to grow on a small machine (measured on two cores: 1/2/4/10/30 in
// parallel take 3.3/2.1/1.7/1.6/1.6 s for 30 pods).
const parallelSandboxes = 4

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
	// Volumes waits for the pod's mounts. It is called beside the creation of the sandbox and before the first container.
	Volumes func(ctx context.Context) (map[string]crispec.Volume, error)
}

// Result is what a pass did.
type Result struct {
	// Touched: something changed in the runtime, so that the pod is to be looked at again.
	Touched bool
	// StartErrors of the containers that should run and could not be started, and containers that were started (with a zero error).
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

func (r *Runtime) note(p *v1.Pod, container, decision, why string, began time.Time, err error) {
	e := journal.Entry{Subject: subject(p), Component: "runtime", Container: container, Decision: decision, Why: why, Error: journal.Error(err)}
	if !began.IsZero() {
		e.Took = time.Since(began).Round(10 * time.Microsecond)
	}
	r.Journal.Record(e)
}

// sandboxIPs returns the addresses of a sandbox just made.
func (r *Runtime) sandboxIPs(ctx context.Context, id pod.SandboxID) ([]string, error) {
	st, err := r.CRI.PodSandboxStatus(ctx, id)
	if err != nil {
		return nil, err
	}
	return cri.SandboxIPs(st), nil
}
