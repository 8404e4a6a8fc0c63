// Package topologymanager brings what a container asks for close together: it asks each provider on
// which NUMA nodes the container's devices, CPUs and memory could lie, merges the answers by its
// policy, and has the providers allocate there (Kubernetes documentation, "Control Topology
// Management Policies on a node").
//
// Owns: policies, scopes and options; the merge of hints; the reason and the message of a refusal
// for want of locality.
// Reads: the hints of providers.
// Never: knows what a hint is of, keeps what was allocated.
package topologymanager

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Nodes is a set of NUMA nodes: bit n is node n. A machine has at most 64.
type Nodes uint64

// Hint is a set of NUMA nodes on which something could lie.
type Hint struct {
	// Nodes is where; 0 is anywhere: no preference.
	Nodes Nodes
	// Preferred says that no smaller set of nodes could ever hold it.
	Preferred bool
}

// Hints are the hints of a provider, by resource. A resource that is missing, or whose list is nil,
// has no preference; an empty list that is not nil can lie nowhere.
type Hints map[v1.ResourceName][]Hint

// Provider gives containers one kind of thing. Calls do not overlap, and do not wait for a plugin
// longer than some seconds.
type Provider interface {
	// Hints says where what the container asks for could lie; where it lies, if it has it already.
	Hints(p *v1.Pod, c *v1.Container) Hints
	// PodHints says it of all containers of the pod together.
	PodHints(p *v1.Pod) Hints
	// Allocate gives the container what it asks for, as near to the hint as can be. What it has
	// already stays. The error is a *Refusal where the provider has a reason of its own.
	Allocate(p *v1.Pod, c *v1.Container, near Hint) error
	// Release takes back what the pod has.
	Release(uid pod.UID)
}

// Refusal is why a pod is refused: the reason and the message of its status.
type Refusal struct{ Reason, Message string }

func (r *Refusal) Error() string { return r.Message }
