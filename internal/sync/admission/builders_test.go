package admission

import (
	"fmt"
	"runtime"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
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
	return nodeOf("2", "4Gi", 10)
}

// nodeOf returns the node "node" with 10 GiB of storage.
func nodeOf(cpus, memory string, maxPods int64) *v1.Node {
	has := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse(cpus), v1.ResourceMemory: resource.MustParse(memory), v1.ResourceEphemeralStorage: resource.MustParse("10Gi"),
		v1.ResourcePods: *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	labels := map[string]string{v1.LabelHostname: "node", v1.LabelOSStable: "linux", v1.LabelArchStable: runtime.GOARCH}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: labels}, Status: v1.NodeStatus{Capacity: has, Allocatable: has}}
}

// told is a refusal as people see it.
func told(r *Rejection) string {
	if r == nil {
		return ""
	}
	messagestest.Saw("status", r.Reason, r.Message)
	return fmt.Sprintf("%s: %s", r.Reason, r.Message)
}
