// Package admission decides whether a pod may start on this node.
//
// Owns: the chain of handlers and their order; the reasons and messages of refusals; who must go
// for a critical pod.
// Reads: the pod, the other active pods and what they were admitted with, the Node, the facts of
// the machine.
// Never: refuses a pod that runs already; ends a pod: a verdict names the victims.
package admission

import (
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/storage/volumes"
)

// Attributes are what a handler judges.
type Attributes struct {
	// Pod asks to start. Its resources are those that it was admitted with by an earlier run of the
	// agent, if it was.
	Pod *v1.Pod
	// OtherPods returns the active pods of the node but this one, with the resources that they were
	// admitted with. There may be thousands of them.
	OtherPods func() []*v1.Pod
	// Node is the newest Node; nil if it is not known.
	Node  *v1.Node
	Facts Facts

	used amounts // what OtherPods ask for in all
}

// Facts are what is true of this machine besides its Node.
type Facts struct {
	// Pressure are the conditions under which the node does not take every pod: MemoryPressure,
	// DiskPressure, PIDPressure.
	Pressure []v1.NodeConditionType
	// ShuttingDown: the machine is about to be turned off.
	ShuttingDown bool
	// AppArmor: the kernel enforces AppArmor profiles.
	AppArmor bool
	// Unlabelled: the runtime gives containers no label of SELinux, whatever pods ask for.
	Unlabelled bool
	// LimitedSwap: containers of burstable pods may use swap.
	LimitedSwap bool
	// TakesClaims: claims of devices are prepared for pods.
	TakesClaims bool
	// OwnCPUs and OwnMemory: containers of guaranteed pods are given CPUs of their own (the policy
	// static of cpuManager), and memory of certain NUMA nodes (Static of memoryManager).
	OwnCPUs, OwnMemory bool
	// PodLevelResourcesOff: pods as a whole have no resources (the gate PodLevelResources turned
	// off).
	PodLevelResourcesOff bool
	// PodLevelResizeOff: resources of pods as a whole are not resized (the gate
	// InPlacePodLevelResourcesVerticalScaling turned off).
	PodLevelResizeOff bool
	// Kernel is the kernel's release, such as "6.12.9-generic".
	Kernel string
	// SupplementalGroupsPolicy: the runtime honours it.
	SupplementalGroupsPolicy bool
	// DeclaredFeatures are those of status.declaredFeatures, sorted. Nil is the gate
	// NodeDeclaredFeatures turned off.
	DeclaredFeatures []string
	// AllowedUnsafeSysctls are names of sysctls, or beginnings of names that end in *.
	AllowedUnsafeSysctls []string
}

// Rejection is why a pod is refused: the reason and the message of its status.
type Rejection struct {
	Reason, Message string
	// Detail says what was wanted and what there is, where the message does not: for the journal.
	Detail string

	shortages []shortage // what is missing, if that alone is why
	stale     bool       // what the Node says alone is why: a newer one may say something else
}

// Handler judges one aspect; nil admits. It is pure.
type Handler func(Attributes) *Rejection

// Handlers is the chain in its order; the first refusal decides.
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

// judge asks the handlers in turn.
func judge(handlers []Handler, a Attributes) *Rejection {
	for _, h := range handlers {
		if r := h(a); r != nil {
			return r
		}
	}
	return nil
}

// unsupportedFields refuses pods that ask for what this version does not do: a pod that runs
// without what it asks for would be a lie.
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
