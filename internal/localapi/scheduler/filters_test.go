package scheduler_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/scheduler"
)

const (
	noPreemption  = " no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
	noVictims     = " no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	neverPreempts = " no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
)

func quantities(pairs ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// newPod returns a pod with one container of these requests.
func newPod(name string, requests ...string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: quantities(requests...)},
		}}},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
}

// with returns the pod after changes.
func with(p *v1.Pod, change ...func(*v1.Pod)) *v1.Pod {
	for _, c := range change {
		c(p)
	}
	return p
}

func newNode(change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{v1.LabelHostname: node}},
		Status:     v1.NodeStatus{Allocatable: quantities("cpu", "2", "memory", "1Gi", "pods", "4", "ephemeral-storage", "10Gi")},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func affinity(terms ...v1.NodeSelectorTerm) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func in(key, value string) []v1.NodeSelectorRequirement {
	return []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}
}

func tolerating(tolerations ...v1.Toleration) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Tolerations = tolerations }
}

func existing(key string) v1.Toleration {
	return v1.Toleration{Key: key, Operator: v1.TolerationOpExists}
}

func hostPort(port v1.ContainerPort) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, port) }
}

func priority(value int32) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Priority = &value }
}

func claimed(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
}

func ephemeral(p *v1.Pod) {
	p.UID = "u"
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
}

func newClaim(name, class string, phase v1.PersistentVolumeClaimPhase) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: "gone"},
		Status:     v1.PersistentVolumeClaimStatus{Phase: phase},
	}
}

func tainted(taints ...v1.Taint) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = taints }
}

func cordoned(n *v1.Node) { n.Spec.Unschedulable = true }

func pressed(conditions ...v1.NodeConditionType) func(*v1.Node) {
	return func(n *v1.Node) {
		for _, c := range conditions {
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: c, Status: v1.ConditionTrue})
		}
	}
}

// The messages are those of kube-scheduler 1.36 for the same pods and a node of the same state.
func TestFilters(t *testing.T) {
	half := newPod("half", "cpu", "1500m")
	noSchedule := v1.Taint{Key: "a", Value: "b", Effect: v1.TaintEffectNoSchedule}
	noExecute := v1.Taint{Key: "c", Effect: v1.TaintEffectNoExecute}
	web := hostPort(v1.ContainerPort{HostPort: 80, ContainerPort: 80, Protocol: v1.ProtocolTCP})
	for name, test := range map[string]struct {
		pod    *v1.Pod
		node   *v1.Node // nil: newNode()
		pods   []*v1.Pod
		claims []*v1.PersistentVolumeClaim
		want   string
	}{
		"fits":                {pod: newPod("p", "cpu", "500m"), pods: []*v1.Pod{half}},
		"fits exactly":        {pod: newPod("p", "cpu", "2", "memory", "1Gi")},
		"cpu":                 {pod: newPod("p", "cpu", "501m"), pods: []*v1.Pod{half}, want: "0/1 nodes are available: 1 Insufficient cpu." + noVictims},
		"cpu of the node":     {pod: newPod("p", "cpu", "3"), want: "0/1 nodes are available: 1 Insufficient cpu." + noPreemption},
		"cpu and memory":      {pod: newPod("p", "cpu", "1", "memory", "2Gi"), pods: []*v1.Pod{half}, want: "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory." + noPreemption},
		"extended resource":   {pod: newPod("p", "example.com/gpu", "1"), want: "0/1 nodes are available: 1 Insufficient example.com/gpu." + noPreemption},
		"ephemeral storage":   {pod: newPod("p", "ephemeral-storage", "20Gi"), want: "0/1 nodes are available: 1 Insufficient ephemeral-storage." + noPreemption},
		"huge pages":          {pod: newPod("p", "hugepages-2Mi", "2Mi"), want: "0/1 nodes are available: 1 Insufficient hugepages-2Mi." + noPreemption},
		"pods":                {pod: newPod("p"), pods: []*v1.Pod{newPod("1"), newPod("2"), newPod("3"), newPod("4")}, want: "0/1 nodes are available: 1 Too many pods." + noVictims},
		"pods and more":       {pod: newPod("p", "cpu", "3", "memory", "3Gi"), pods: []*v1.Pod{newPod("1"), newPod("2"), newPod("3"), newPod("4")}, want: "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 Too many pods." + noPreemption},
		"preempts never":      {pod: with(newPod("p", "cpu", "1"), func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) }), pods: []*v1.Pod{half}, want: "0/1 nodes are available: 1 Insufficient cpu." + neverPreempts},
		"critical priority":   {pod: with(newPod("p", "cpu", "1"), priority(2000000000)), pods: []*v1.Pod{half}, want: "0/1 nodes are available: 1 Insufficient cpu." + noVictims},
		"nothing allocatable": {pod: newPod("p", "cpu", "100"), node: newNode(func(n *v1.Node) { n.Status.Allocatable = nil })},
		"overhead":            {pod: with(newPod("p", "cpu", "500m"), func(p *v1.Pod) { p.Spec.Overhead = quantities("cpu", "1m") }), pods: []*v1.Pod{half}, want: "0/1 nodes are available: 1 Insufficient cpu." + noVictims},
		"resize not done": {
			pod: newPod("p", "cpu", "501m"), want: "0/1 nodes are available: 1 Insufficient cpu." + noVictims,
			pods: []*v1.Pod{with(newPod("shrinks", "cpu", "1"), func(p *v1.Pod) {
				p.Status.ContainerStatuses = []v1.ContainerStatus{{
					Name: "c", AllocatedResources: quantities("cpu", "1500m"), Resources: &v1.ResourceRequirements{Requests: quantities("cpu", "1500m")},
				}}
			})},
		},

		"cordoned":              {pod: newPod("p"), node: newNode(cordoned), want: "0/1 nodes are available: 1 node(s) were unschedulable." + noPreemption},
		"cordoned, tolerated":   {pod: with(newPod("p"), tolerating(existing(v1.TaintNodeUnschedulable))), node: newNode(cordoned)},
		"cordoned and too much": {pod: newPod("p", "cpu", "10"), node: newNode(cordoned), want: "0/1 nodes are available: 1 node(s) were unschedulable." + noPreemption},
		"tainted":               {pod: newPod("p"), node: newNode(tainted(noSchedule)), want: "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption},
		"tainted, tolerated":    {pod: with(newPod("p"), tolerating(existing("a"))), node: newNode(tainted(noSchedule))},
		"two taints":            {pod: with(newPod("p"), tolerating(existing("a"))), node: newNode(tainted(noSchedule, noExecute)), want: "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption},
		"two taints, tolerated": {pod: with(newPod("p"), tolerating(v1.Toleration{Operator: v1.TolerationOpExists})), node: newNode(tainted(noSchedule, noExecute))},
		"preferred taint":       {pod: newPod("p"), node: newNode(tainted(v1.Taint{Key: "e", Effect: v1.TaintEffectPreferNoSchedule}))},
		"taint before selector": {
			pod:  with(newPod("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
			node: newNode(tainted(noSchedule)), want: "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption,
		},
		"disk pressure":              {pod: newPod("p", "cpu", "1m"), node: newNode(pressed(v1.NodeDiskPressure)), want: "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption},
		"disk pressure, critical":    {pod: with(newPod("p"), priority(2000000000)), node: newNode(pressed(v1.NodeDiskPressure))},
		"memory pressure":            {pod: newPod("p"), node: newNode(pressed(v1.NodeMemoryPressure)), want: "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption},
		"memory pressure, burstable": {pod: newPod("p", "cpu", "1m"), node: newNode(pressed(v1.NodeMemoryPressure))},
		"memory pressure, tolerated": {pod: with(newPod("p"), tolerating(existing(v1.TaintNodeMemoryPressure))), node: newNode(pressed(v1.NodeMemoryPressure))},
		"memory and disk pressure":   {pod: newPod("p", "cpu", "1m"), node: newNode(pressed(v1.NodeMemoryPressure, v1.NodeDiskPressure)), want: "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption},

		"node selector": {
			pod:  with(newPod("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
			want: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector." + noPreemption,
		},
		"node selector that matches": {pod: with(newPod("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelHostname: node} })},
		"node affinity":              {pod: with(newPod("p"), affinity(v1.NodeSelectorTerm{MatchExpressions: in("a", "b")})), want: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector." + noPreemption},
		"affinity to another node":   {pod: with(newPod("p"), affinity(v1.NodeSelectorTerm{MatchFields: in("metadata.name", "other")})), want: "0/1 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity]." + noPreemption},
		"affinity to this node too":  {pod: with(newPod("p"), affinity(v1.NodeSelectorTerm{MatchFields: in("metadata.name", "other")}, v1.NodeSelectorTerm{MatchFields: in("metadata.name", node)}))},
		"affinity to another node or a label": {
			pod:  with(newPod("p"), affinity(v1.NodeSelectorTerm{MatchFields: in("metadata.name", "other")}, v1.NodeSelectorTerm{MatchExpressions: in("a", "b")})),
			want: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector." + noPreemption,
		},

		"host port":                {pod: with(newPod("p"), web), pods: []*v1.Pod{with(newPod("o"), web)}, want: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports." + noVictims},
		"host port before cpu":     {pod: with(newPod("p", "cpu", "10"), web), pods: []*v1.Pod{with(newPod("o"), web)}, want: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports." + noVictims},
		"host port of an address":  {pod: with(newPod("p"), hostPort(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.1"})), pods: []*v1.Pod{with(newPod("o"), web)}, want: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports." + noVictims},
		"host port of another":     {pod: with(newPod("p"), hostPort(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.1"})), pods: []*v1.Pod{with(newPod("o"), hostPort(v1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}))}},
		"host port of UDP":         {pod: with(newPod("p"), hostPort(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolUDP})), pods: []*v1.Pod{with(newPod("o"), web)}},
		"same port of containers":  {pod: with(newPod("p"), hostPort(v1.ContainerPort{ContainerPort: 80})), pods: []*v1.Pod{with(newPod("o"), hostPort(v1.ContainerPort{ContainerPort: 80}))}},
		"host port, preempts none": {pod: with(newPod("p"), web, func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) }), pods: []*v1.Pod{with(newPod("o"), web)}, want: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports." + neverPreempts},

		"no claim":              {pod: with(newPod("p"), claimed("v")), want: `0/1 nodes are available: persistentvolumeclaim "v" not found. not found`},
		"claim before cordon":   {pod: with(newPod("p"), claimed("v")), node: newNode(cordoned), want: `0/1 nodes are available: persistentvolumeclaim "v" not found. not found`},
		"unbound claim":         {pod: with(newPod("p"), claimed("v")), claims: []*v1.PersistentVolumeClaim{newClaim("v", "", v1.ClaimPending)}, want: "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"},
		"claim of no class":     {pod: with(newPod("p"), claimed("v")), claims: []*v1.PersistentVolumeClaim{newClaim("v", "missing", v1.ClaimPending)}, want: "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"},
		"claim that waits":      {pod: with(newPod("p"), claimed("v")), claims: []*v1.PersistentVolumeClaim{newClaim("v", "waits", v1.ClaimPending)}},
		"bound claim":           {pod: with(newPod("p"), claimed("v")), claims: []*v1.PersistentVolumeClaim{newClaim("v", "", v1.ClaimBound)}},
		"lost claim":            {pod: with(newPod("p"), claimed("v")), claims: []*v1.PersistentVolumeClaim{newClaim("v", "", v1.ClaimLost)}, want: `0/1 nodes are available: persistentvolumeclaim "v" bound to non-existent persistentvolume "gone". not found`},
		"second claim":          {pod: with(newPod("p"), claimed("v"), claimed("w")), claims: []*v1.PersistentVolumeClaim{newClaim("v", "", v1.ClaimBound)}, want: `0/1 nodes are available: persistentvolumeclaim "w" not found. not found`},
		"no ephemeral claim":    {pod: with(newPod("p"), ephemeral), want: `0/1 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v". not found`},
		"claim of another pod":  {pod: with(newPod("p"), ephemeral), claims: []*v1.PersistentVolumeClaim{newClaim("p-v", "", v1.ClaimBound)}, want: `0/1 nodes are available: PVC default/p-v was not created for pod default/p (pod is not owner). not found`},
		"claim that is deleted": {pod: with(newPod("p"), claimed("v")), claims: []*v1.PersistentVolumeClaim{deleted(newClaim("v", "waits", v1.ClaimPending))}, want: `0/1 nodes are available: persistentvolumeclaim "v" is being deleted. not found`},
	} {
		t.Run(name, func(t *testing.T) {
			s := scheduler.Snapshot{Node: test.node, Pods: test.pods}
			if s.Node == nil {
				s.Node = newNode()
			}
			s.Claim = func(namespace, name string) (*v1.PersistentVolumeClaim, error) {
				for _, c := range test.claims {
					if c.Namespace == namespace && c.Name == name {
						return c, nil
					}
				}
				return nil, nil
			}
			s.WaitsForConsumer = func(class string) (bool, error) { return class == "waits", nil }
			got, err := scheduler.Filters{}.Begin(s).Decide(test.pod)
			if err != nil || got != test.want {
				t.Errorf("got %q, %v\nwant %q", got, err, test.want)
			}
			reasons, err := scheduler.Filters{}.Explain(s, test.pod)
			if err != nil || (len(reasons) > 0) != (test.want != "") {
				t.Errorf("explained as %+v, %v", reasons, err)
			}
			for _, r := range reasons {
				if r.Rule == "" || (r.Detail == "") == (r.Shortage == nil) || r.Shortage == nil && r.Awaited == "" {
					t.Errorf("a reason lacks its values: %+v", r)
				}
			}
		})
	}
}

func deleted(c *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	c.DeletionTimestamp = new(metav1.Now())
	return c
}

// A pod that is bound counts for the next decision of the cycle.
func TestAssume(t *testing.T) {
	port := hostPort(v1.ContainerPort{HostPort: 80})
	c := scheduler.Filters{}.Begin(scheduler.Snapshot{Node: newNode()})
	for i, want := range []string{
		"", "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports." + noVictims,
	} {
		p := with(newPod("p", "cpu", "1500m"), port)
		if got, err := c.Decide(p); err != nil || got != want {
			t.Errorf("decision %d: %q, %v; want %q", i, got, err, want)
		}
		c.Assume(p)
	}
	want := "0/1 nodes are available: 1 Insufficient cpu." + noVictims
	if got, err := c.Decide(newPod("p", "cpu", "501m")); err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestNoNode(t *testing.T) {
	if got, err := (scheduler.Filters{}).Begin(scheduler.Snapshot{}).Decide(newPod("p")); err != nil || got != "no nodes available to schedule pods" {
		t.Errorf("got %q, %v", got, err)
	}
}
