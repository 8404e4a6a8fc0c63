package admission

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestFit(t *testing.T) {
	onNode := func(pairs ...string) *v1.Node {
		n := newNode()
		n.Status.Allocatable = maps.Clone(n.Status.Allocatable)
		maps.Copy(n.Status.Allocatable, resources(pairs...))
		return n
	}
	var ten []*v1.Pod
	for range 10 {
		ten = append(ten, newPod("o"))
	}
	others := func(list ...*v1.Pod) []*v1.Pod { return list }
	sidecar := func(p *v1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{
			Name: "s", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), Resources: v1.ResourceRequirements{Requests: resources("cpu", "500m")},
		})
	}
	initStep := func(cpu string) option {
		return func(p *v1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: "i", Resources: v1.ResourceRequirements{Requests: resources("cpu", cpu)}})
		}
	}
	overhead := func(p *v1.Pod) { p.Spec.Overhead = resources("cpu", "100m") }
	atPodLevel := func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{Requests: resources("cpu", "3")} }
	for _, tc := range []struct {
		name   string
		node   *v1.Node
		others []*v1.Pod
		pod    *v1.Pod
		want   string
	}{
		{name: "nothing asked for", node: newNode(), pod: newPod("p")},
		{name: "all of it", node: newNode(), pod: newPod("p", requests("cpu", "2", "memory", "4Gi", "ephemeral-storage", "10Gi"))},
		{
			name: "CPU", node: newNode(), pod: newPod("p", requests("cpu", "2001m")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2001, used: 0, capacity: 2000",
		},
		{
			name: "CPU, used by others", node: newNode(), others: others(newPod("a", requests("cpu", "1")), newPod("b", requests("cpu", "500m"))), pod: newPod("p", requests("cpu", "1")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000",
		},
		{name: "the rest", node: newNode(), others: others(newPod("a", requests("cpu", "1500m"))), pod: newPod("p", requests("cpu", "500m"))},
		{
			name: "nothing asked for on a node that is full", node: newNode(), others: others(newPod("a", requests("cpu", "5", "memory", "5Gi"))), pod: newPod("p"),
		},
		{
			name: "memory", node: newNode(), pod: newPod("p", requests("memory", "5Gi")),
			want: "OutOfmemory: Node didn't have enough resource: memory, requested: 5368709120, used: 0, capacity: 4294967296",
		},
		{
			name: "storage", node: newNode(), pod: newPod("p", requests("ephemeral-storage", "11Gi")),
			want: "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240",
		},
		{
			name: "pods", node: newNode(), others: ten, pod: newPod("p"),
			want: "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 10, capacity: 10",
		},
		{
			name: "pods before CPU", node: newNode(), others: ten, pod: newPod("p", requests("cpu", "3")),
			want: "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 10, capacity: 10",
		},
		{
			name: "CPU before memory", node: newNode(), pod: newPod("p", requests("cpu", "3", "memory", "5Gi")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{
			name: "huge pages that are not there", node: newNode(), pod: newPod("p", requests("hugepages-2Mi", "4Mi")),
			want: "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, capacity: 0",
		},
		{name: "huge pages", node: onNode("hugepages-2Mi", "4Mi"), pod: newPod("p", requests("hugepages-2Mi", "4Mi"))},
		{
			name: "an extended resource", node: onNode("example.com/gpu", "1"), others: others(newPod("a", requests("example.com/gpu", "1"))), pod: newPod("p", requests("example.com/gpu", "1")),
			want: "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 1, used: 1, capacity: 1",
		},
		{
			name: "init containers need the most", node: newNode(), pod: newPod("p", requests("cpu", "1"), initStep("3")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{name: "init containers one by one", node: newNode(), pod: newPod("p", requests("cpu", "1"), initStep("1500m"), initStep("2"))},
		{
			name: "sidecars and containers", node: newNode(), pod: newPod("p", requests("cpu", "1600m"), sidecar),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000",
		},
		{
			name: "an init container beside the sidecar before it", node: newNode(), pod: newPod("p", sidecar, initStep("1600m")),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000",
		},
		{name: "an init container before the sidecar", node: newNode(), pod: newPod("p", initStep("1600m"), sidecar)},
		{
			name: "overhead", node: newNode(), pod: newPod("p", requests("cpu", "2"), overhead),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000",
		},
		{
			name: "pod level", node: newNode(), pod: newPod("p", requests("cpu", "1"), atPodLevel),
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{name: "a node that tells nothing", node: &v1.Node{}, pod: newPod("p", requests("cpu", "100"))},
	} {
		if got := told(predicates(Attributes{Pod: tc.pod, Node: tc.node}.beside(tc.others...))); got != tc.want {
			t.Errorf("%s:\n got %q\nwant %q", tc.name, got, tc.want)
		}
	}
}

// Which of several failures is told, and what may be done about it.
func TestWhichFailureIsTold(t *testing.T) {
	elsewhere := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	otherName := func(p *v1.Pod) { p.Spec.NodeName = "other" }
	for _, tc := range []struct {
		name             string
		pod              *v1.Pod
		reason           string
		recover, refresh bool
	}{
		{"resources alone", newPod("p", requests("cpu", "3", "memory", "5Gi")), "OutOfcpu", true, false},
		{"affinity alone", newPod("p", elsewhere), "NodeAffinity", false, true},
		{"affinity and name", newPod("p", elsewhere, otherName), "NodeAffinity", false, false},
		{"resources and affinity", newPod("p", requests("cpu", "3"), elsewhere), "OutOfcpu", false, false},
		{"resources and affinity of a critical pod", newPod("p", requests("cpu", "3"), elsewhere, critical), "NodeAffinity", false, false},
		{"resources of a critical pod", newPod("p", requests("cpu", "3"), critical), "OutOfcpu", true, false},
	} {
		r := predicates(Attributes{Pod: tc.pod, Node: newNode()})
		if r == nil || r.Reason != tc.reason || (len(r.shortages) > 0) != tc.recover || r.stale != tc.refresh {
			t.Errorf("%s: got %+v, want reason %s, to be recovered %v, by a newer Node %v", tc.name, r, tc.reason, tc.recover, tc.refresh)
		}
	}
}
