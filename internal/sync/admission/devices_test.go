package admission

import (
	"maps"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const gpu = v1.ResourceName("nvidia.com/gpu")

// inInit gives the pod an init container that asks for what the first container asks for, which
// asks for nothing any more.
func inInit(p *v1.Pod) {
	p.Spec.InitContainers = []v1.Container{{Name: "setup", Resources: p.Spec.Containers[0].Resources}}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{}
}

func TestExtendedResources(t *testing.T) {
	offers := func(n string) *v1.Node {
		node := newNode()
		node.Status.Allocatable = maps.Clone(node.Status.Allocatable)
		maps.Copy(node.Status.Allocatable, resources(string(gpu), n))
		return node
	}
	refused := func(container, amount string) string {
		return "OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu, requested: " + amount + ", used: 0, capacity: 0: container \"" +
			container + "\" asks for nvidia.com/gpu, which is not available on this node: no device plugin has registered it"
	}
	for name, tc := range map[string]struct {
		node *v1.Node
		pod  *v1.Pod
		want string
	}{
		"nobody names it":              {newNode(), newPod("p", requests(string(gpu), "1")), refused("c", "1")},
		"what a kubelet left":          {offers("0"), newPod("p", requests(string(gpu), "2")), refused("c", "2")},
		"advertised by hand":           {offers("1"), newPod("p", requests(string(gpu), "1")), ""},
		"too few of those by hand":     {offers("1"), newPod("p", requests(string(gpu), "2")), "OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu, requested: 2, used: 0, capacity: 1"},
		"an init container":            {newNode(), newPod("p", requests(string(gpu), "1"), inInit), refused("setup", "1")},
		"a critical pod":               {newNode(), newPod("p", requests(string(gpu), "1"), critical), refused("c", "1")},
		"none of it":                   {newNode(), newPod("p", requests(string(gpu), "0")), ""},
		"a node that tells nothing":    {&v1.Node{}, newPod("p", requests(string(gpu), "1")), refused("c", "1")},
		"a native one with a domain":   {newNode(), newPod("p", requests("kubernetes.io/batch", "1")), "OutOfkubernetes.io/batch: Node didn't have enough resource: kubernetes.io/batch, requested: 1, used: 0, capacity: 0"},
		"huge pages are the kernel's":  {newNode(), newPod("p", requests("hugepages-2Mi", "4Mi")), "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, capacity: 0"},
		"a Node that is not known yet": {nil, newPod("p", requests(string(gpu), "1")), "InvalidNodeInfo: The Node of this machine is not known."},
	} {
		r := judge(Handlers(), Attributes{Pod: tc.pod, Node: tc.node}.beside())
		if got := told(r); got != tc.want {
			t.Errorf("%s:\n got %q\nwant %q", name, got, tc.want)
		}
		if r != nil && strings.Contains(r.Message, "nobody offers") && r.shortages != nil {
			t.Errorf("%s: other pods would have to go, who have none of it", name)
		}
	}
}

// Devices that are asked for by claims are refused by the path of the field, whatever the Node has.
func TestClaimsAreRefused(t *testing.T) {
	claims := []v1.ResourceClaim{{Name: "gpu"}}
	for path, ask := range map[string]option{
		"spec.resourceClaims": func(p *v1.Pod) {
			p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("g")}}
		},
		"spec.containers[0].resources.claims":     func(p *v1.Pod) { p.Spec.Containers[0].Resources.Claims = claims },
		"spec.initContainers[0].resources.claims": func(p *v1.Pod) { p.Spec.Containers[0].Resources.Claims = claims; inInit(p) },
		`status.extendedResourceClaimStatus: container "c": nvidia.com/gpu by the claim "p-gpu"`: func(p *v1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "p-gpu", RequestMappings: []v1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: string(gpu), RequestName: "r"}},
			}
		},
	} {
		r := judge(Handlers(), Attributes{Pod: newPod("p", ask), Node: newNode()}.beside())
		if want := "UnsupportedField: this version of berth does not support: " + path; told(r) != want {
			t.Errorf("got %q\nwant %q", told(r), want)
		}
	}
}
