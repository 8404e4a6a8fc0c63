package admission

import (
	"errors"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// Assigner assigns exclusive resources to pods: devices, CPUs and memory (containerManager). No
// method waits longer than some seconds for a plugin.
type Assigner interface {
	// Assign assigns resources to a pod that all handlers admit. Existing assignments stay. An
	// error is a *topologymanager.Refusal; nothing new is assigned then.
	Assign(p *v1.Pod) error
	// Reassign is Assign for a pod that an earlier agent admitted. On an error, the pod keeps what
	// could be assigned.
	Reassign(p *v1.Pod) error
	// Release releases the pod's resources.
	Release(uid pod.UID)
	// Retain releases the resources of all pods that are not in known, except later ones. It does
	// not block.
	Retain(known map[pod.UID]bool)
}

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

// assignAgain is assign for a pod that an earlier agent admitted. It does not reject: the pod's
// containers wait for missing resources.
//
// Differs from the kubelet: there such a pod fails, with all its containers, if a device plugin has
// not registered yet when the kubelet restarts.
func (c *Chain) assignAgain(p *v1.Pod) {
	if err := c.cfg.Assigner.Reassign(p); err != nil {
		c.note(p, "go on without what the pod is to be assigned", "an earlier agent admitted it", err)
	}
}

// withDevices returns the Node with the current device counts: its own are as old as the last
// status report. For a resource that no plugin ever offered, the Node's count stays.
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
