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

	v1 "k8s.io/api/core/v1"

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
	CRI      *cri.Client
	Images   *images.Puller
	Recorder Recorder
	Journal  *journal.Journal
	Log      *slog.Logger
	// RootDir is the agent's root: pods/<uid> below it holds a pod's files, seccomp/ the Localhost profiles.
	RootDir string
	// PodLogsDir is the folder of pod logs (KubeletConfiguration podLogsDir), ContainerLogsDir the one of the links that log shippers
	// read (/var/log/containers); "" makes no links.
	PodLogsDir, ContainerLogsDir string
	// NodeMemory is the node's memory in bytes.
	NodeMemory int64
	// HostIPs are the node's addresses, for the downward API.
	HostIPs []string
	// Objects are what environments refer to; nil without an API server.
	Objects Objects
	// Allocatable returns what the node has for pods, for environments that show limits which are not set; nil: it is not known.
	Allocatable func() v1.ResourceList
}

// Runtime acts on pods through CRI (containerRuntime of the literature).
type Runtime struct {
	Config
	crash *lifecycle.CrashLoop

	// starting bounds sandbox creations under way: containerd is saturated by a few, and more only make each slower.
	starting chan struct{}

	mu       sync.Mutex
	messages map[pod.ContainerID]string // guarded by mu; termination messages of exited containers
}

// New returns a Runtime.
func New(cfg Config) *Runtime {
	return &Runtime{
		Config: cfg, crash: lifecycle.NewCrashLoop(),
		starting: make(chan struct{}, parallelSandboxes), messages: map[pod.ContainerID]string{},
	}
}

// parallelSandboxes is where containerd's throughput stops to grow on a small machine (measured on two cores: 1/2/4/10/30 in
// parallel take 3.3/2.1/1.7/1.6/1.6 s for 30 pods).
const parallelSandboxes = 4

// Request is one pass over a running pod.
type Request struct {
	Pod      *v1.Pod
	Observed *pod.Status
	// CgroupParent is the pod's cgroup in the form of the cgroup driver.
	CgroupParent string
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
}

func (r *Result) failed(name string, e lifecycle.StartError) {
	if r.StartErrors == nil {
		r.StartErrors = map[string]lifecycle.StartError{}
	}
	r.StartErrors[name] = e
	if !e.BackOffUntil.IsZero() && (r.RetryAt.IsZero() || e.BackOffUntil.Before(r.RetryAt)) {
		r.RetryAt = e.BackOffUntil
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
