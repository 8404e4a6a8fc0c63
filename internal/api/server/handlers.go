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

// Dialer connects to an address inside of a pod's network.
type Dialer = streams.Dialer

// Handlers is what the server asks of the agent. All functions up to Healthz are needed; all must
// be safe for concurrent use and must not wait for the runtime or another process. Pods that they
// hand out are shared and are never changed.
type Handlers struct {
	// Pods returns every pod of the node with its status filled in, ordered by namespace and name.
	Pods func() []*v1.Pod
	// Pod returns one pod with its status filled in, and false when the node does not have it (any
	// more).
	Pod func(uid pod.UID) (*v1.Pod, bool)
	// Subscribe returns an inbox that gets the UID of every pod that comes, changes (status
	// included) or goes, and the function that ends the subscription. A change after the return of
	// Subscribe is never missed. The empty UID says that the problems of manifests changed.
	Subscribe func() (changed *pod.Inbox[pod.UID], cancel func())
	// ContainerLog returns the log file of one incarnation of a container, which the pod's status
	// names. It fails with an error that wraps fs.ErrNotExist when the runtime does not have that
	// incarnation any more.
	ContainerLog func(uid pod.UID, id pod.ContainerID) (path string, err error)
	// Problems returns what is wrong with manifests now.
	Problems func() []manifest.Problem
	// Journal is the record of decisions.
	Journal *journal.Journal
	// Version says what the agent is and runs on.
	Version func() Version
	// Stop begins to stop the agent and returns at once.
	Stop func(StopScope)
	// Healthz returns what keeps the agent from working, or nil.
	Healthz func() error

	// DevicePlugins returns why device plugins cannot register, or nil. It may be nil; then that is
	// no check of the kubelet's ports.
	DevicePlugins func() error

	// Health returns all conditions of the agent as they are now. It may be nil; then the path does
	// not exist.
	Health func() []health.State

	// Thresholds returns those at which pods are evicted, and how they stand. It may be nil; then
	// the path does not exist.
	Thresholds func() []Threshold

	// Resources returns who has which devices, CPUs, memory and claims, and what is left. It may be
	// nil; then the path does not exist.
	Resources func() containermanager.Snapshot

	// Events and Quarantine may be nil; then the paths do not exist.

	// Events is the node's own record of its events.
	Events Events
	// Quarantine knows the pods that are set aside.
	Quarantine Quarantine

	// Pulls returns the pulls of images under way. It may be nil; then the path does not exist.
	// Unlike the other functions, it may wait for the runtime, for as long as it takes to learn how
	// far the pulls are.
	Pulls func(ctx context.Context) []Pull

	// PruneImages removes images that nobody uses, and returns what became of every image. It may
	// be nil; then the path does not exist. Unlike the other functions, it waits for the runtime.
	PruneImages func(ctx context.Context, o images.PruneOptions) ([]images.Verdict, error)

	// OpenView has a view of the node open, in the run directory, that kubectl can read, or says
	// ErrLocalAPI. It may be nil; then the path does not exist. Unlike the other functions, it
	// waits for the disk.
	OpenView func(ctx context.Context) error

	// Waits returns the calls for a pod that the runtime, or a CSI driver, has not answered yet,
	// the oldest first. It may be nil.
	Waits func(uid pod.UID) []Wait
	// Volumes returns what volumes of pods are made from, nil if they need nothing that may be
	// missing. It may be nil.
	Volumes func(pods []*v1.Pod) *VolumeSources
	// Unreported returns since when the API server does not have the status of a pod as it is; zero
	// if it has. It may be nil.
	Unreported func(uid pod.UID) time.Time
	// Probes returns how the probes of a pod stand. It may be nil.
	Probes func(uid pod.UID) []Probe
	// Scheduler explains the pods of the local API that have no node. It may be nil.
	Scheduler Scheduler

	// Node returns the Node, with its kind: the newest that the API server showed, or this
	// machine's own description where there is none. It may be nil; then the path does not exist.
	// Unlike the functions, it may wait for the runtime.
	Node func(ctx context.Context) (*v1.Node, error)

	// Streaming and Observed are needed to enter containers; without both, the paths do not exist.

	// Streaming makes the runtime ready for a stream. Unlike the functions, it waits for the
	// runtime.
	Streaming Streaming
	// PodDialer returns how to connect inside of a sandbox's network, nil if only the runtime can:
	// then it has the port-forwards, as it has all of them when PodDialer is nil. It waits for the
	// runtime too.
	PodDialer func(ctx context.Context, sandbox *pod.SandboxStatus) (Dialer, error)
	// Observed returns what the runtime showed of a pod last, and false when it has nothing of it.
	Observed func(uid pod.UID) (*pod.Status, bool)

	// Stats says what pods and node use; nil: the paths of it do not exist. Unlike the functions,
	// it waits: for disks, and the runtime.
	Stats Stats

	// ObservedPods and Configz are needed in kubelet mode only.

	// ObservedPods returns what the runtime showed of every pod that it has something of.
	ObservedPods func() []*pod.Status
	// Configz returns the KubeletConfiguration in force, for encoding/json. If it is nil outside of
	// kubelet mode, Server.Proxied does not serve it.
	Configz func() any
	// Settings returns what the agent was configured with, and where each value came from; nothing
	// if it has no KubeletConfiguration. It may be nil.
	Settings func() ([]Setting, error)
}

// missing returns the names of the handlers that are needed and not there; k is nil without the
// kubelet's ports.
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

// Setting is one value of the agent's configuration, an item of the answer of /berth/v1/settings.
type Setting struct {
	// Path is the field of the KubeletConfiguration, or the flag with its dashes.
	Path string `json:"path"`
	// Value is as in JSON.
	Value any `json:"value"`
	// From is the file or the flag, or "default".
	From string `json:"from"`
}

// Stats says what pods and node use.
type Stats interface {
	// Summary returns it in the form of the Summary API, in whole or not at all.
	Summary(ctx context.Context, scope stats.Scope) (*summary.Summary, error)
}

// Streaming is the part of CRI that streams begin with. The URL is where the runtime waits for one
// client, once.
type Streaming interface {
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (url string, err error)
	// ExecSync runs a command to its end, without a stream.
	ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
}

// Version is the answer of /berth/v1/version.
type Version struct {
	Version string `json:"version"`
	// PID is the agent's process, by which a client can wait for its end.
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	NodeName  string    `json:"nodeName"`
	RootDir   string    `json:"rootDir"`
	// RuntimeName, RuntimeVersion are the runtime's own words (CRI VersionResponse); empty while it
	// has not answered.
	RuntimeName     string `json:"runtimeName,omitempty"`
	RuntimeVersion  string `json:"runtimeVersion,omitempty"`
	RuntimeEndpoint string `json:"runtimeEndpoint"`
}

// StopScope says what a stop takes along.
type StopScope int

const (
	// StopAgent ends the agent alone; pods and runtime go on.
	StopAgent StopScope = iota
	// StopAll stops all pods first, then ends the embedded runtime and the agent.
	StopAll
)

func (s StopScope) String() string { return [...]string{"StopAgent", "StopAll"}[s] }
