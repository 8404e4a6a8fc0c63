// Package admission decides whether a pod may start on this node.
//
// Owns: the chain of handlers and their order; the reasons and messages of rejections; the choice
// of preemption victims.
// Reads: the pod, the other active pods and their allocations, the Node, the facts of the machine.
// Never: rejects a running pod; terminates a pod: a verdict names the victims.
package admission

import (
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/storage/volumes"
)

// Attributes is the input of a handler.
type Attributes struct {
	// Pod is to be admitted. It has the allocation of an earlier run of the agent, if there is one.
	Pod *v1.Pod
	// OtherPods returns the other active pods of the node with their allocations. There may be
	// thousands.
	OtherPods func() []*v1.Pod
	// Node is the newest Node; nil if it is unknown.
	Node  *v1.Node
	Facts Facts

	used amounts // total requests of OtherPods
}

// Facts describes this machine beyond its Node.
type Facts struct {
	// Pressure has the conditions under which the node rejects some pods: MemoryPressure,
	// DiskPressure, PIDPressure.
	Pressure []v1.NodeConditionType
	// ShuttingDown: the machine is about to shut down.
	ShuttingDown bool
	// AppArmor: the kernel enforces AppArmor profiles.
	AppArmor bool
	// Unlabelled: the runtime sets no SELinux labels, whatever pods request.
	Unlabelled bool
	// LimitedSwap: containers of burstable pods may use swap.
	LimitedSwap bool
	// TakesClaims: resource claims are prepared for pods.
	TakesClaims bool
	// OwnCPUs and OwnMemory: containers of guaranteed pods get exclusive CPUs (cpuManager policy
	// static) and memory of specific NUMA nodes (memoryManager policy Static).
	OwnCPUs, OwnMemory bool
	// PodLevelResourcesOff: pod-level resources are off (feature gate PodLevelResources).
	PodLevelResourcesOff bool
	// PodLevelResizeOff: pod-level resources are not resized (feature gate
	// InPlacePodLevelResourcesVerticalScaling is off).
	PodLevelResizeOff bool
	// Kernel is the kernel release, such as "6.12.9-generic".
	Kernel string
	// SupplementalGroupsPolicy: the runtime supports it.
	SupplementalGroupsPolicy bool
	// DeclaredFeatures are those of status.declaredFeatures, sorted. Nil if the feature gate
	// NodeDeclaredFeatures is off.
	DeclaredFeatures []string
	// AllowedUnsafeSysctls are names of sysctls, or prefixes that end in *.
	AllowedUnsafeSysctls []string
}

// Rejection is the reason and message of a rejected pod's status.
type Rejection struct {
	Reason, Message string
	// Detail adds requested and available values for the journal, where the message lacks them.
	Detail string

	shortages []shortage // the missing resources, if they are the only cause
	stale     bool       // only the Node's content is the cause: a newer Node may admit the pod
}

// Handler checks one aspect; nil admits. It is pure.
type Handler func(Attributes) *Rejection

// Handlers returns the chain in order; the first rejection decides.
func Handlers() []Handler {
	return []Handler{
		unsupportedFields,
		nodeConditions,
		sysctls,
		extendedResources,
		predicates,
		appArmor,
		podLevelResources,
		declaredFeatures,
		nodeShutdown,
	}
}

func judge(handlers []Handler, a Attributes) *Rejection {
	for _, h := range handlers {
		if r := h(a); r != nil {
			return r
		}
	}
	return nil
}

// unsupportedFields rejects pods that use fields which this version does not implement, instead of
// ignoring the fields.
func unsupportedFields(a Attributes) *Rejection {
	fields := volumes.Unsupported(a.Pod)
	if !a.Facts.TakesClaims {
		fields = append(fields, UnsupportedClaims(a.Pod)...)
	}
	if len(fields) == 0 {
		return nil
	}
	sort.Strings(fields)
	return &Rejection{Reason: "UnsupportedField", Message: "this version of berth does not support: " + strings.Join(fields, ", ")}
}
