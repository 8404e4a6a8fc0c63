// Package admission decides whether a pod may start on this node.
//
// Owns: the chain of handlers and their order; the reasons and messages of refusals.
// Reads: the pod and the other active pods.
// Never: refuses a pod that runs already, or acts on another pod.
package admission

import (
	"context"
	"runtime"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/volumes"
)

// Attributes are what a handler judges.
type Attributes struct {
	Pod *v1.Pod
	// OtherPods are the active pods of the node but this one.
	OtherPods []*v1.Pod
}

// Rejection is why a pod is refused: the reason and the message of its status.
type Rejection struct{ Reason, Message string }

// Handler judges one aspect; nil admits. It is pure.
type Handler func(Attributes) *Rejection

// Handlers is the chain in its order; the first refusal decides.
func Handlers() []Handler {
	return []Handler{unsupportedFields, operatingSystem, hostPorts}
}

// Config is what a Chain needs.
type Config struct {
	Handlers []Handler
	// Ready is closed when ActivePods is complete: when it is known what already runs.
	Ready <-chan struct{}
	// ActivePods returns the pods that were admitted and have not ended.
	ActivePods func() []*v1.Pod
	// Reject records a refusal: status Failed and an event.
	Reject func(p *v1.Pod, r Rejection)
}

// Chain asks the handlers in turn.
type Chain struct{ Config }

// New returns a chain.
func New(cfg Config) *Chain { return &Chain{cfg} }

// Admit reports whether the pod may start, and records the refusal if not. It waits until it is known what already runs; its error is
// that of ctx.
func (c *Chain) Admit(ctx context.Context, p *v1.Pod) (bool, error) {
	select {
	case <-c.Ready:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	a := Attributes{Pod: p}
	for _, o := range c.ActivePods() {
		if o.UID != p.UID {
			a.OtherPods = append(a.OtherPods, o)
		}
	}
	for _, h := range c.Handlers {
		if r := h(a); r != nil {
			c.Reject(p, *r)
			return false, nil
		}
	}
	return true, nil
}

// operatingSystem refuses pods that are for another operating system.
func operatingSystem(a Attributes) *Rejection {
	if os := a.Pod.Labels[v1.LabelOSStable]; os != "" && os != runtime.GOOS {
		return &Rejection{"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if os := a.Pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &Rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

type hostPort struct {
	protocol v1.Protocol
	port     int32
}

// hostPorts refuses pods that ask for a host port which another pod has. A port on all addresses conflicts with the same port on any.
func hostPorts(a Attributes) *Rejection {
	taken := map[hostPort][]string{}
	for _, o := range a.OtherPods {
		eachHostPort(o, func(k hostPort, ip string) { taken[k] = append(taken[k], ip) })
	}
	var r *Rejection
	eachHostPort(a.Pod, func(k hostPort, ip string) {
		for _, other := range taken[k] {
			if ip == other || ip == "" || other == "" {
				r = &Rejection{"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}
			}
		}
	})
	return r
}

func eachHostPort(p *v1.Pod, f func(k hostPort, ip string)) {
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, port := range list[i].Ports {
				if port.HostPort == 0 {
					continue
				}
				ip := port.HostIP
				if ip == "0.0.0.0" || ip == "::" {
					ip = ""
				}
				f(hostPort{port.Protocol, port.HostPort}, ip)
			}
		}
	}
}

// unsupportedFields refuses pods that ask for what this version does not do: a pod that runs without what it asks for would be a lie.
func unsupportedFields(a Attributes) *Rejection {
	fields := append(Unsupported(a.Pod), volumes.Unsupported(a.Pod)...)
	if len(fields) == 0 {
		return nil
	}
	sort.Strings(fields)
	return &Rejection{"UnsupportedField", "this version of berth does not support: " + strings.Join(fields, ", ")}
}
