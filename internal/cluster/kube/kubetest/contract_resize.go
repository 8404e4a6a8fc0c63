package kubetest

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var resizeContract = []clause{
	{"ResourcesHaveDefaults", func(c *contract) {
		p := c.pod("nowhere")
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("32Mi")}
		got := create(c, p).Spec.Containers[0]
		if request := got.Resources.Requests[v1.ResourceMemory]; request.Cmp(resource.MustParse("32Mi")) != 0 || len(got.Resources.Requests) != 1 {
			c.Errorf("requests %v, want the limit", got.Resources.Requests)
		}
		if len(got.ResizePolicy) != 0 {
			c.Errorf("resizePolicy %v, want none", got.ResizePolicy)
		}
	}},
	{"ResizeChangesResources", func(c *contract) {
		resizablePod(c)
		p := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "resize", resizeTo("200m", "48Mi"))
		cpu, memory := p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU], p.Spec.Containers[0].Resources.Limits[v1.ResourceMemory]
		if cpu.MilliValue() != 200 || memory.Value() != 48<<20 || p.Generation != 2 {
			c.Errorf("resources %v, generation %d, want 200m, 48Mi and 2", p.Spec.Containers[0].Resources, p.Generation)
		}
		if same := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "resize", resizeTo("0.2", "48Mi")); same.Generation != 2 {
			c.Errorf("generation %d after a resize to the same in other words, want 2", same.Generation)
		}
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("150m")
		p = mustInto[*v1.Pod](c, c.request("PUT", kindOf[*v1.Pod]()).Name(c.id).SubResource("resize").Body(p))
		if cpu := p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; cpu.MilliValue() != 150 || p.Generation != 3 {
			c.Errorf("requests %v, generation %d after an update, want 150m and 3", cpu.String(), p.Generation)
		}
	}},
	{"ResizeIsTheOnlyWay", func(c *contract) {
		resizablePod(c)
		_, err := patched[*v1.Pod](c, types.StrategicMergePatchType, c.id, "", resizeTo("200m", "48Mi"))
		c.expect(err, metav1.StatusReasonInvalid, "change of resources in the pod itself")
	}},
	{"ResizeChangesNothingElse", func(c *contract) {
		resizablePod(c)
		for what, patch := range map[string]string{
			"other resources": `{"spec":{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"1Gi"}}}]}}`,
			"the QoS class":   `{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"100m","memory":"32Mi"},"requests":{"cpu":"100m","memory":"32Mi"}}}]}}`,
		} {
			_, err := patched[*v1.Pod](c, types.StrategicMergePatchType, c.id, "resize", patch)
			c.expect(err, metav1.StatusReasonInvalid, "a resize of "+what)
		}
		p := mustPatch[*v1.Pod](c, types.StrategicMergePatchType, c.id, "resize",
			`{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"registry.example/i:2"}]},"status":{"phase":"Failed"}}`)
		if p.Status.Phase != v1.PodPending || p.Generation != 1 || p.Spec.RestartPolicy == v1.RestartPolicyNever || p.Spec.Containers[0].Image == "registry.example/i:2" {
			c.Errorf("phase %s, generation %d, spec %v, want what they were", p.Status.Phase, p.Generation, p.Spec)
		}
	}},
}

// resizablePod creates a burstable pod and a node with capacity for it, without which the server
// rejects a resize.
func resizablePod(c *contract) {
	room := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("10")}
	create(c, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.id}, Status: v1.NodeStatus{Capacity: room, Allocatable: room}})
	p := c.pod(c.id)
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("16Mi")},
		Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("32Mi")},
	}
	create(c, p)
}

// resizeTo returns a patch to another CPU request and memory limit.
func resizeTo(cpu, memory string) string {
	return fmt.Sprintf(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":%q},"limits":{"memory":%q}}}]}}`, cpu, memory)
}
