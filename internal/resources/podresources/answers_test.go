package podresources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/cpuset"
)

// expect compares a message with what the text says of it.
func expect[M proto.Message](t *testing.T, got, want M, text string) {
	t.Helper()
	if err := prototext.Unmarshal([]byte(text), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGeneratePod(t *testing.T) {
	always, share := v1.ContainerRestartPolicyAlways, "s-1"
	twoPhases := newPod("default", "web", v1.Container{Name: "a"}, v1.Container{Name: "b"})
	twoPhases.Spec.InitContainers = []v1.Container{{Name: "first"}, {Name: "s1", RestartPolicy: &always}, {Name: "second"}, {Name: "s2", RestartPolicy: &always}}
	twoPhases.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "shell"}}}
	one := newPod("default", "web", v1.Container{Name: "main"})
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		has  holdings
		want string // of each container after its name
	}{
		{
			"sidecars before regular ones, no plain init, no ephemeral", twoPhases,
			holdings{devices: map[string][]Device{"first": {{Resource: "r", ID: "1"}}, "shell": {{Resource: "r", ID: "2"}}}},
			`containers {name: "s1"} containers {name: "s2"} containers {name: "a"} containers {name: "b"}`,
		},
		{"nothing", one, holdings{}, `containers {name: "main"}`},
		{
			"a device on no node, on one, on two", one,
			holdings{devices: map[string][]Device{"main": {
				{Resource: "b", ID: "2", Nodes: []int{1, 0}}, {Resource: "b", ID: "1", Nodes: []int{0}}, {Resource: "a", ID: "9"},
			}}},
			`containers {name: "main"
				devices {resource_name: "a" device_ids: "9"}
				devices {resource_name: "b" device_ids: "1" topology {nodes {ID: 0}}}
				devices {resource_name: "b" device_ids: "2" topology {nodes {ID: 0}}}
				devices {resource_name: "b" device_ids: "2" topology {nodes {ID: 1}}}
			}`,
		},
		{
			"CPUs ascend as numbers", one,
			holdings{cpus: map[string]cpuset.CPUSet{"main": cpuset.New(10, 9, 100)}},
			`containers {name: "main" cpu_ids: [9, 10, 100]}`,
		},
		{
			"memory on two nodes, huge pages on none", one,
			holdings{blocks: map[string][]Block{"main": {{v1.ResourceMemory, 1 << 40, []int{3, 1}}, {"hugepages-1Gi", 1 << 30, nil}}}},
			`containers {name: "main"
				memory {memory_type: "memory" size: 1099511627776 topology {nodes {ID: 1} nodes {ID: 3}}}
				memory {memory_type: "hugepages-1Gi" size: 1073741824}
			}`,
		},
		{
			"each device of a claim has its own CDI names", one,
			holdings{claims: map[string][]Claim{"main": {{Namespace: "default", Name: "c", Devices: []ClaimedDevice{
				{Driver: "d", Pool: "p", Name: "1", CDI: []string{"v/k=1", "v/k=1b"}},
				{Driver: "d", Pool: "p", Name: "2", Share: &share, CDI: []string{"v/k=2"}},
				{Driver: "d", Pool: "p", Name: "3"},
			}}}}},
			`containers {name: "main" dynamic_resources {claim_name: "c" claim_namespace: "default"
				claim_resources {driver_name: "d" pool_name: "p" device_name: "1" cdi_devices {name: "v/k=1"} cdi_devices {name: "v/k=1b"}}
				claim_resources {driver_name: "d" pool_name: "p" device_name: "2" share_id: "s-1" cdi_devices {name: "v/k=2"}}
				claim_resources {driver_name: "d" pool_name: "p" device_name: "3"}
			}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, generatePod(c.pod, c.has), &podresourcesv1.PodResources{}, `name: "web" namespace: "default" `+c.want)
		})
	}
}

func TestGenerateAlphaPod(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	p := newPod("default", "web", v1.Container{Name: "a"}, v1.Container{Name: "b"})
	p.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: &always}}
	has := holdings{
		devices: map[string][]Device{"a": {{Resource: "r", ID: "2", Nodes: []int{0, 1}}, {Resource: "r", ID: "1"}}, "side": {{Resource: "r", ID: "3"}}},
		cpus:    map[string]cpuset.CPUSet{"a": cpuset.New(1)},
	}
	expect(t, generateAlphaPod(p, has), &v1alpha1.PodResources{}, `name: "web" namespace: "default"
		containers {name: "a" devices {resource_name: "r" device_ids: "1"} devices {resource_name: "r" device_ids: "2"}}
		containers {name: "b"}`)
}

func TestSortedPods(t *testing.T) {
	pods := []*v1.Pod{newPod("b", "a"), newPod("a", "z"), newPod("a", "b")}
	var got []string
	for _, p := range sortedPods(pods) {
		got = append(got, p.Namespace+"/"+p.Name)
	}
	if diff := cmp.Diff([]string{"a/b", "a/z", "b/a"}, got); diff != "" {
		t.Error(diff)
	}
	if pods[0].Namespace != "b" {
		t.Error("the slice of the caller was sorted")
	}
}
