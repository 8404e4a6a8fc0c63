package explain

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// Report is what explains the pods, or the manifest, of one name.
type Report struct {
	// Pods are the node's pods of this name, with their status.
	Pods []*v1.Pod `json:"pods,omitempty"`
	// Stories are the journal's timelines: one per incarnation of the name, the most recently
	// written last.
	Stories []journal.Timeline `json:"stories"`
	// Quarantined maps the UIDs of quarantined pods to the crash that caused it.
	Quarantined map[pod.UID]string `json:"quarantined,omitempty"`
	// Pulls are the current pulls for the pods.
	Pulls []Pull `json:"pulls,omitempty"`
	// Waits are the pending calls for the pods.
	Waits []Wait `json:"waits,omitempty"`
	// Volumes are the missing sources of the pods' volumes.
	Volumes *VolumeSources `json:"volumes,omitempty"`
	// Probes are the states of the pods' probes.
	Probes []Probe `json:"probes,omitempty"`
	// Unbound explains a pod that has no node yet; nil if there is none.
	Unbound *Unbound `json:"unbound,omitempty"`
	// Unreported maps pods to the time since when the API server's status is out of date.
	Unreported map[pod.UID]time.Time `json:"unreported,omitempty"`
	// Node lists the agent's active conditions under which it is not reliable, and an unavailable
	// API server.
	Node []health.State `json:"node,omitempty"`
	// Problems are the problems of manifests that describe such a pod, or of the manifest.
	Problems []manifest.Problem `json:"problems,omitempty"`
}

// Wait is a pending call for a pod, to the runtime, a CSI driver or a volume server.
type Wait struct {
	Pod pod.UID `json:"pod"`
	// Driver is the CSI driver; empty for the runtime.
	Driver string `json:"driver,omitempty"`
	// From describes another program that is to answer, such as "the NFS server files".
	From string `json:"from,omitempty"`
	// Call is the name of the call, such as "CreateContainer"; with From, a description of the
	// operation.
	Call string `json:"call"`
	// Container is the container of the call; empty for a call about the pod, and if unknown.
	Container string `json:"container,omitempty"`
	// Volume is the driver's name of the volume of the call, with From the pod's name of it; empty
	// if the call concerns no volume.
	Volume string `json:"volume,omitempty"`
	// Since is when an answer was first expected: when the call was made, or after the time that
	// the call itself requests, such as a grace period.
	Since time.Time `json:"since"`
	// Until is when the call times out.
	Until time.Time `json:"until"`
}

// VolumeSources are the sources of the pods' volumes.
type VolumeSources struct {
	// UnboundClaims were not bound to a volume when last read.
	UnboundClaims []UnboundClaim `json:"unboundClaims,omitempty"`
	// CSIDrivers are the names of the registered CSI drivers.
	CSIDrivers []string `json:"csiDrivers,omitempty"`
	// PluginRegistry is the directory in which drivers register with a socket, including those of
	// ResourceClaims.
	PluginRegistry string `json:"pluginRegistry,omitempty"`
}

// UnboundClaim is a PersistentVolumeClaim that is not bound.
type UnboundClaim struct {
	Name  string                        `json:"name"`
	Phase v1.PersistentVolumeClaimPhase `json:"phase"`
	Spec  v1.PersistentVolumeClaimSpec  `json:"spec"`
}

// Probe is the state of a container's probe.
type Probe struct {
	Pod       pod.UID `json:"pod"`
	Container string  `json:"container"`
	// Kind is liveness, readiness or startup.
	Kind string `json:"kind"`
	// Last is the newest result, success or failure; unknown before the first. InARow is the number
	// of consecutive equal results, Needed the number at which the agent acts.
	Last   string `json:"last"`
	InARow int    `json:"inARow"`
	Needed int    `json:"needed"`
	// Next is the time of the next try; absent if none is due, or one is running.
	Next time.Time `json:"next,omitzero"`
}

// Unbound is a pod without a node, and what holds it.
type Unbound struct {
	Pod *v1.Pod `json:"-"`
	// UID is that of the pod.
	UID pod.UID `json:"uid"`
	// Reasons hold the pod now. Without any, it is bound in the next cycle.
	Reasons []SchedulingReason `json:"reasons,omitempty"`
	// Ahead are the waiting pods that are decided about before it: those of a higher priority, and
	// older ones of the same.
	Ahead []string `json:"ahead,omitempty"`
}

// Rules that are no plugins of kube-scheduler which filter nodes.
const (
	RuleSchedulingGates = "SchedulingGates"
	RuleSchedulerName   = "schedulerName"
	RuleNodeShutdown    = "NodeShutdown"
)

// SchedulingReason is what holds a pod.
type SchedulingReason struct {
	// Rule is the plugin of kube-scheduler that has the rule, such as NodeResourcesFit, or a
	// constant above.
	Rule string `json:"rule"`
	// Detail is a sentence with the values, empty with a Shortage.
	Detail   string    `json:"detail,omitempty"`
	Shortage *Shortage `json:"shortage,omitempty"`
	// Awaited continues "as soon as"; empty if nothing but another pod or another node helps.
	Awaited string `json:"awaited,omitempty"`
}

// Shortage is a resource of which less is free than a pod requests. The amounts are in the least
// unit: thousandths of CPUs, bytes, pieces.
type Shortage struct {
	Resource    v1.ResourceName `json:"resource"`
	Requested   int64           `json:"requested"`
	Used        int64           `json:"used"`
	Allocatable int64           `json:"allocatable"`
	// Users are the pods that use the resource, those that use most first.
	Users []ResourceUser `json:"users,omitempty"`
}

// ResourceUser is a pod that uses a resource.
type ResourceUser struct {
	Pod    string `json:"pod"`
	Amount int64  `json:"amount"`
	// Until is when its grace period is over if it is being deleted.
	Until time.Time `json:"until,omitzero"`
}
