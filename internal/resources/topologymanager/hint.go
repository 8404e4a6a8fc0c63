// Package topologymanager aligns the resources of a container: it collects from each provider the
// NUMA nodes that the container's devices, CPUs and memory could use, merges these hints by its
// policy, and has the providers allocate there (Kubernetes documentation, "Control Topology
// Management Policies on a node").
//
// Owns: policies, scopes and options; the merge of hints; the reason and the message of a rejection
// because of topology affinity.
// Reads: the hints of providers.
// Never: depends on the resource of a hint, stores allocations.
package topologymanager

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Nodes is a set of NUMA nodes: bit n is node n. A machine has at most 64.
type Nodes uint64

// Hint is a set of NUMA nodes that can satisfy a request.
type Hint struct {
	// Nodes are the NUMA nodes; 0 means no preference.
	Nodes Nodes
	// Preferred: no smaller set of nodes could ever satisfy the request.
	Preferred bool
}

// Hints are the hints of a provider, by resource. A missing resource or a nil list means no
// preference; an empty list that is not nil means that no nodes can satisfy the request.
type Hints map[v1.ResourceName][]Hint

// Provider allocates one kind of resource to containers. Calls during admission do not overlap; a
// container that starts without its allocation may call Allocate meanwhile. Calls must not wait for
// a plugin longer than a few seconds.
type Provider interface {
	// Hints returns the hints for the container's request, or of its existing allocation.
	Hints(p *v1.Pod, c *v1.Container) Hints
	// PodHints returns the hints for all containers of the pod together.
	PodHints(p *v1.Pod) Hints
	// Allocate allocates the container's request, as near to the hint as possible. An existing
	// allocation stays. The error may be a *Refusal with the provider's own reason.
	Allocate(p *v1.Pod, c *v1.Container, near Hint) error
	// Release releases the resources of the pod.
	Release(uid pod.UID)
}

// Refusal is the error of a rejected pod: the reason and the message of its status.
type Refusal struct{ Reason, Message string }

func (r *Refusal) Error() string { return r.Message }
