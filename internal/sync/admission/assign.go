package admission

import (
	"errors"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// Assigner gives pods what of the node is theirs alone: devices, CPUs and memory
// (containerManager). No method waits for a plugin longer than some seconds.
type Assigner interface {
	// Assign chooses it for a pod that may start otherwise. What the pod has already stays. An
	// error is a *topologymanager.Refusal; nothing new is given then.
	Assign(p *v1.Pod) error
	// Reassign is Assign for a pod that an earlier agent admitted. What it can be given stays with
	// it whatever the error says.
	Reassign(p *v1.Pod) error
	// Release takes back what the pod has.
	Release(uid pod.UID)
	// Retain takes it back from all pods but these, and those that come later. It does not block.
	Retain(known map[pod.UID]bool)
}

// nobody shares nothing out.
type nobody struct{}

func (nobody) Assign(*v1.Pod) error    { return nil }
func (nobody) Reassign(*v1.Pod) error  { return nil }
func (nobody) Release(pod.UID)         {}
func (nobody) Retain(map[pod.UID]bool) {}

// assign has the pod given what is to be its alone.
func (c *Chain) assign(p *v1.Pod) *Rejection {
	err := c.cfg.Assigner.Assign(p)
	if err == nil {
		return nil
	}
	var refused *topologymanager.Refusal
	if errors.As(err, &refused) {
		return &Rejection{Reason: refused.Reason, Message: refused.Message}
	}
	return &Rejection{Reason: "UnexpectedAdmissionError", Message: err.Error()}
}

// assignAgain is assign for a pod that an earlier agent admitted. It is not refused: its containers
// wait for what is missing.
//
// Differs from the kubelet: there such a pod fails, with all its containers, if the plugin of a
// device has not registered yet when the kubelet starts again.
func (c *Chain) assignAgain(p *v1.Pod) {
	if err := c.cfg.Assigner.Reassign(p); err != nil {
		c.note(p, "go on without what the pod is to be assigned", "an earlier agent admitted it", err)
	}
}

// withDevices returns the Node with as many devices as there are now: what it says of them itself
// is as old as the last report. A resource that no plugin ever offered stays what the Node says.
func withDevices(n *v1.Node, devices map[v1.ResourceName]int64) *v1.Node {
	if n == nil || len(devices) == 0 || n.Status.Allocatable == nil {
		return n
	}
	out := *n
	out.Status.Allocatable = maps.Clone(n.Status.Allocatable)
	for name, count := range devices {
		out.Status.Allocatable[name] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	return &out
}
