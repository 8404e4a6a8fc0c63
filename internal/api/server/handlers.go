package server

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/api/streams"
	"berth/internal/explain"
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

// Handlers is the server's interface to the agent, by feature. The paths of an optional feature
// that is nil or zero do not exist. All functions must be safe for concurrent use and, unless they
// take a context, must not wait for the runtime or another process. The pods that they return are
// shared and never modified.
type Handlers struct {
	// Agent, Pods, Logs, Health and Explain are required.
	Agent   Agent
	Pods    Pods
	Logs    Logs
	Health  Health
	Explain Explain

	// Observed is required for Streams, and for the kubelet's ports.
	Observed Observed
	// Streams prepares streams in the runtime.
	Streams Streams
	// Configuration is required for the kubelet's ports.
	Configuration Configuration
	Stats         Stats
	Thresholds    Thresholds
	Resources     Resources
	Images        Images
	View          View
}

// Agent describes and stops the agent.
type Agent struct {
	// Version returns the versions of agent and runtime.
	Version func() Version
	// Stop starts stopping the agent and returns immediately.
	Stop func(StopScope)
}

// Pods are the pods of the node.
type Pods struct {
	// List returns every pod of the node with its status, ordered by namespace and name.
	List func() []*v1.Pod
	// Get returns a pod with its status, and false if the node does not have it.
	Get func(uid pod.UID) (*v1.Pod, bool)
	// Subscribe returns an inbox that gets the UID of every pod that is added, changed (including
	// its status) or deleted, and a function that ends the subscription. No change after Subscribe
	// returns is missed. The empty UID means that the problems of manifests changed.
	Subscribe func() (changed *pod.Inbox[pod.UID], cancel func())
}

// Logs returns the log file of one incarnation of a container, which the pod's status names. The
// error wraps fs.ErrNotExist if the runtime no longer has that incarnation.
type Logs func(uid pod.UID, id pod.ContainerID) (path string, err error)

// Health is the health of the agent.
type Health struct {
	// Check returns why the agent is not healthy, or nil.
	Check func() error
	// Conditions returns all conditions of the agent with their current state.
	Conditions func() []health.State
	// DevicePlugins returns why device plugins cannot register, or nil. Nil: the kubelet's ports do
	// not have this check.
	DevicePlugins func() error
}

// Explain is the data of explanations of pods and manifests.
type Explain struct {
	// Journal is the record of decisions.
	Journal *journal.Journal
	// Problems returns the current problems of manifests.
	Problems func() []manifest.Problem
	// Quarantine returns and releases quarantined pods; nil: there is no quarantine.
	Quarantine Quarantine
	// Details returns the state of pods that only explanations contain; nil: they have none.
	Details Details
	// Pulls returns the current image pulls; nil: explanations have none. It may wait for the
	// runtime's report of the progress.
	Pulls func(ctx context.Context) []explain.Pull
	// Scheduler explains the pods of the local API that have no node; nil: there is no local API.
	Scheduler Scheduler
}

// Details returns the state of pods that only explanations contain.
type Details interface {
	// Waits returns the pending calls of the runtime or CSI drivers for a pod, oldest first.
	Waits(uid pod.UID) []explain.Wait
	// Volumes returns the sources of the pods' volumes, nil if they need none that may be missing.
	Volumes(pods []*v1.Pod) *explain.VolumeSources
	// Unreported returns since when the API server's status of a pod is out of date; zero if it is
	// current.
	Unreported(uid pod.UID) time.Time
	// Probes returns the state of a pod's probes.
	Probes(uid pod.UID) []explain.Probe
}

// Quarantine holds the pods that the agent does not sync because it crashed while syncing them.
type Quarantine interface {
	// Why returns the crash for which the pod is quarantined, and false if it is not.
	Why(uid pod.UID) (report string, quarantined bool)
	// Release releases the pods of this name, and reports whether one was quarantined.
	Release(namespace, name string) bool
}

// Observed is the newest status of the pods in the runtime.
type Observed struct {
	// Get returns the status of a pod, and false if the runtime has nothing of it.
	Get func(uid pod.UID) (*pod.Status, bool)
	// List returns the status of every pod.
	List func() []*pod.Status
}

// Streams are the streams to containers and pods.
type Streams struct {
	// Runtime prepares streams in the runtime.
	Runtime Streaming
	// PodDialer returns a dialer within a sandbox's network namespace, nil if the runtime must do
	// the port-forward, as it does for all if PodDialer is nil.
	PodDialer func(ctx context.Context, sandbox *pod.SandboxStatus) (Dialer, error)
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

// Configuration is the agent's configuration.
type Configuration struct {
	// Configz returns the KubeletConfiguration in force, for encoding/json.
	Configz func() any
	// Settings returns the agent's configured values and their origins; nil without a
	// KubeletConfiguration.
	Settings func() ([]Setting, error)
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

// Thresholds returns the eviction thresholds with their state.
type Thresholds func() []Threshold

// Resources returns the assigned and free devices, CPUs, memory and claims.
type Resources func() containermanager.Snapshot

// Images removes unused images, and returns a verdict for every image.
type Images func(ctx context.Context, o images.PruneOptions) ([]images.Verdict, error)

// View opens a view of the node for kubectl in the run directory, or returns ErrLocalAPI.
type View func(ctx context.Context) error

// missing returns the names of the required handlers that are nil; k is nil without the kubelet's
// ports.
func (h *Handlers) missing(k *Kubelet) []string {
	var names []string
	for _, f := range []struct {
		name       string
		is, needed bool
	}{
		{"Pods.List", h.Pods.List != nil, true},
		{"Pods.Get", h.Pods.Get != nil, true},
		{"Pods.Subscribe", h.Pods.Subscribe != nil, true},
		{"Logs", h.Logs != nil, true},
		{"Explain.Problems", h.Explain.Problems != nil, true},
		{"Explain.Journal", h.Explain.Journal != nil, true},
		{"Agent.Version", h.Agent.Version != nil, true},
		{"Agent.Stop", h.Agent.Stop != nil, true},
		{"Health.Check", h.Health.Check != nil, true},
		{"Health.Conditions", h.Health.Conditions != nil, true},
		{"Streams.Runtime", h.Streams.Runtime != nil, h.Streams.PodDialer != nil},
		{"Observed.Get", h.Observed.Get != nil, h.Streams.Runtime != nil},
		{"Observed.List", h.Observed.List != nil, k != nil},
		{"Configuration.Configz", h.Configuration.Configz != nil, k != nil},
	} {
		if f.needed && !f.is {
			names = append(names, f.name)
		}
	}
	return names
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
