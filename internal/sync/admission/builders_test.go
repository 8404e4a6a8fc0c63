package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
)

// option changes a pod of a test.
type option func(*v1.Pod)

// newPod returns a pod of the API server with one container.
func newPod(name string, options ...option) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = name, "default", pod.UID(name)
	p.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.APISource)}
	p.Spec.Containers = []v1.Container{{Name: "c", Image: "i"}}
	for _, o := range options {
		o(p)
	}
	return p
}

func resources(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// requests adds to what the first container asks for: name, quantity, name, quantity…
func requests(pairs ...string) option {
	return func(p *v1.Pod) {
		r := &p.Spec.Containers[0].Resources
		if r.Requests == nil {
			r.Requests = v1.ResourceList{}
		}
		for name, q := range resources(pairs...) {
			r.Requests[name] = q
		}
	}
}

// guaranteed gives the first container limits that are its requests.
func guaranteed(p *v1.Pod) {
	p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
}

func static(p *v1.Pod) { p.Annotations[pod.ConfigSourceAnnotation] = string(pod.FileSource) }

func withPriority(n int32) option { return func(p *v1.Pod) { p.Spec.Priority = &n } }

// critical gives the pod the priority of system-node-critical.
func critical(p *v1.Pod) { withPriority(2_000_001_000)(p) }

func withPort(host int32, ip string, proto v1.Protocol) option {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, v1.ContainerPort{HostPort: host, HostIP: ip, Protocol: proto})
	}
}

func withSysctl(name string) option {
	return func(p *v1.Pod) {
		if p.Spec.SecurityContext == nil {
			p.Spec.SecurityContext = &v1.PodSecurityContext{}
		}
		p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, v1.Sysctl{Name: name, Value: "1"})
	}
}

// run makes the pods active ones of the node.
func (c *Chain) run(pods ...*v1.Pod) {
	for _, p := range pods {
		c.cfg.Pods.Set(p)
		c.cfg.States.Set(p.UID, pod.Lifecycle{State: pod.Syncing})
		c.Adopt(p)
	}
}

// beside fills in the other pods of the node.
func (a Attributes) beside(others ...*v1.Pod) Attributes {
	a.OtherPods, a.used = func() []*v1.Pod { return others }, amounts{}
	for _, o := range others {
		a.used.add(requestsOf(o))
	}
	return a
}

// newNode returns the node "node" with two CPUs, 4 GiB and room for ten pods.
func newNode() *v1.Node {
	return LocalNode(LocalMachine{Name: "node", CPUs: 2, Memory: 4 << 30, Storage: 10 << 30, MaxPods: 10})
}

// told is a refusal as people see it.
func told(r *Rejection) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", r.Reason, r.Message)
}
