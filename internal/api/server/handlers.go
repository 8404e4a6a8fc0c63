package server

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/api/streams"
	"berth/internal/health"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/containermanager"
	"berth/internal/runtime/images"
	"berth/internal/source/manifest"
)

// Dialer connects to an address in a pod's network namespace.
type Dialer = streams.Dialer

// Handlers is the server's interface to the agent. All functions up to Healthz are required; all
// must be safe for concurrent use and must not wait for the runtime or another process. The pods
// that they return are shared and never modified.
type Handlers struct {
	// Pods returns every pod of the node with its status, ordered by namespace and name.
	Pods func() []*v1.Pod
	// Pod returns a pod with its status, and false if the node does not have it.
	Pod func(uid pod.UID) (*v1.Pod, bool)
	// Subscribe returns an inbox that gets the UID of every pod that is added, changed (including
	// its status) or deleted, and a function that ends the subscription. No change after Subscribe
	// returns is missed. The empty UID means that the problems of manifests changed.
	Subscribe func() (changed *pod.Inbox[pod.UID], cancel func())
	// ContainerLog returns the log file of one incarnation of a container, which the pod's status
	// names. The error wraps fs.ErrNotExist if the runtime no longer has that incarnation.
	ContainerLog func(uid pod.UID, id pod.ContainerID) (path string, err error)
	// Problems returns the current problems of manifests.
	Problems func() []manifest.Problem
	// Journal is the record of decisions.
	Journal *journal.Journal
	// Version returns the versions of agent and runtime.
	Version func() Version
	// Stop starts stopping the agent and returns immediately.
	Stop func(StopScope)
	// Healthz returns why the agent is not healthy, or nil.
	Healthz func() error

	// DevicePlugins returns why device plugins cannot register, or nil. It may be nil; then the
	// kubelet's ports do not have this check.
	DevicePlugins func() error

	// Health returns all conditions of the agent with their current state. It may be nil; then the
	// path does not exist.
	Health func() []health.State

	// Thresholds returns the eviction thresholds with their state. It may be nil; then the path
	// does not exist.
	Thresholds func() []Threshold

	// Resources returns the assigned and free devices, CPUs, memory and claims. It may be nil; then
	// the path does not exist.
	Resources func() containermanager.Snapshot

	// Events and Quarantine may be nil; then the paths do not exist.

	// Events is the node's record of its events.
	Events Events
	// Quarantine returns and releases quarantined pods.
	Quarantine Quarantine

	// Pulls returns the current image pulls. It may be nil; then the path does not exist. Unlike
	// the other functions, it may wait for the runtime's report of the progress.
	Pulls func(ctx context.Context) []Pull

	// PruneImages removes unused images, and returns a verdict for every image. It may be nil; then
	// the path does not exist. Unlike the other functions, it waits for the runtime.
	PruneImages func(ctx context.Context, o images.PruneOptions) ([]images.Verdict, error)

	// OpenView opens a view of the node for kubectl in the run directory, or returns ErrLocalAPI.
	// It may be nil; then the path does not exist. Unlike the other functions, it waits for the
	// disk.
	OpenView func(ctx context.Context) error

	// Waits returns the pending calls of the runtime or CSI drivers for a pod, oldest first. It may
	// be nil.
	Waits func(uid pod.UID) []Wait
	// Volumes returns the sources of the pods' volumes, nil if they need none that may be missing.
	// It may be nil.
	Volumes func(pods []*v1.Pod) *VolumeSources
	// Unreported returns since when the API server's status of a pod is out of date; zero if it is
	// current. It may be nil.
	Unreported func(uid pod.UID) time.Time
	// Probes returns the state of a pod's probes. It may be nil.
	Probes func(uid pod.UID) []Probe
	// Scheduler explains the pods of the local API that have no node. It may be nil.
	Scheduler Scheduler

	// Node returns the Node, with its kind: the newest from the API server, or this machine's
	// description without one. It may be nil; then the path does not exist. Unlike the other
	// functions, it may wait for the runtime.
	Node func(ctx context.Context) (*v1.Node, error)

	// Streaming and Observed are required for streams to containers; without both, the paths do not
	// exist.

	// Streaming prepares streams in the runtime. Unlike the other functions, it waits for the
	// runtime.
	Streaming Streaming
	// PodDialer returns a dialer within a sandbox's network namespace, nil if the runtime must do
	// the port-forward, as it does for all if PodDialer is nil. It waits for the runtime too.
	PodDialer func(ctx context.Context, sandbox *pod.SandboxStatus) (Dialer, error)
	// Observed returns the newest status of a pod from the runtime, and false if the runtime has
	// nothing of it.
	Observed func(uid pod.UID) (*pod.Status, bool)

	// Stats returns the resource usage of pods and node; nil: its paths do not exist. Unlike the
	// other functions, it waits for disks and the runtime.
	Stats Stats

	// ObservedPods and Configz are required only in kubelet mode.

	// ObservedPods returns the newest status of every pod in the runtime.
	ObservedPods func() []*pod.Status
	// Configz returns the KubeletConfiguration in force, for encoding/json. If it is nil outside of
	// kubelet mode, Server.Proxied does not serve it.
	Configz func() any
	// Settings returns the agent's configured values and their origins; empty without a
	// KubeletConfiguration. It may be nil.
	Settings func() ([]Setting, error)
}

// missing returns the names of the required handlers that are nil; k is nil without the kubelet's
// ports.
func (h *Handlers) missing(k *Kubelet) []string {
	var names []string
	for _, f := range []struct {
		name       string
		is, needed bool
	}{
		{"Pods", h.Pods != nil, true},
		{"Pod", h.Pod != nil, true},
		{"Subscribe", h.Subscribe != nil, true},
		{"ContainerLog", h.ContainerLog != nil, true},
		{"Problems", h.Problems != nil, true},
		{"Journal", h.Journal != nil, true},
		{"Version", h.Version != nil, true},
		{"Stop", h.Stop != nil, true},
		{"Healthz", h.Healthz != nil, true},
		{"Streaming", h.Streaming != nil, h.Observed != nil},
		{"Observed", h.Observed != nil, h.Streaming != nil},
		{"ObservedPods", h.ObservedPods != nil, k != nil},
		{"Configz", h.Configz != nil, k != nil},
	} {
		if f.needed && !f.is {
			names = append(names, f.name)
		}
	}
	return names
}

// Setting is one value of the agent's configuration, an item of the response of /berth/v1/settings.
type Setting struct {
	// Path is the field of the KubeletConfiguration, or the flag with its dashes.
	Path string `json:"path"`
	// Value is as in JSON.
	Value any `json:"value"`
	// From is the file or the flag, or "default".
	From string `json:"from"`
}

// Stats returns the resource usage of pods and node.
type Stats interface {
	// Summary returns the usage in the form of the Summary API, or an error if any part fails.
	Summary(ctx context.Context, scope stats.Scope) (*summary.Summary, error)
}

// Streaming is the part of CRI that prepares streams. The runtime accepts one client at the URL,
// once.
type Streaming interface {
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (url string, err error)
	// ExecSync runs a command until it exits, without a stream.
	ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
}

// Version is the response of /berth/v1/version.
type Version struct {
	Version string `json:"version"`
	// PID is the agent's process; clients can wait for its exit.
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	NodeName  string    `json:"nodeName"`
	RootDir   string    `json:"rootDir"`
	// RuntimeName and RuntimeVersion are as the runtime reports them (CRI VersionResponse); empty
	// before its first answer.
	RuntimeName     string `json:"runtimeName,omitempty"`
	RuntimeVersion  string `json:"runtimeVersion,omitempty"`
	RuntimeEndpoint string `json:"runtimeEndpoint"`
}

// StopScope selects what a stop request stops.
type StopScope int

const (
	// StopAgent stops only the agent; pods and runtime keep running.
	StopAgent StopScope = iota
	// StopAll stops all pods, then the embedded runtime and the agent.
	StopAll
)

func (s StopScope) String() string { return [...]string{"StopAgent", "StopAll"}[s] }
