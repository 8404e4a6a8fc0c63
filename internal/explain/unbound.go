package explain

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

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
