package admission

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// What a refusal does not say in the scheduler's words is in its detail: what was wanted, and what
// there is.
func TestDetailsOfRefusals(t *testing.T) {
	n := newNode()
	n.Labels["zone"] = "a"
	n.Spec.Taints = []v1.Taint{{Key: "gpu", Value: "a", Effect: v1.TaintEffectNoExecute}, {Key: "drain", Effect: v1.TaintEffectNoExecute}}
	selects := func(labels map[string]string) option { return func(p *v1.Pod) { p.Spec.NodeSelector = labels } }
	requires := func(terms ...v1.NodeSelectorTerm) option {
		return func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	term := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	other := newPod("other", withPort(80, "", v1.ProtocolTCP))
	for name, tc := range map[string]struct {
		handler Handler
		pod     *v1.Pod
		want    string
	}{
		"another value, and a missing label": {
			nodeAffinity, newPod("p", selects(map[string]string{"zone": "b", "disk": "ssd", "kubernetes.io/os": "linux"})),
			"its nodeSelector wants disk=ssd, and the node has no label disk; its nodeSelector wants zone=b, and the node has zone=a",
		},
		"affinity": {
			nodeAffinity, newPod("p", requires(term("zone", v1.NodeSelectorOpIn, "b", "c"), term("disk", v1.NodeSelectorOpExists))),
			"its node affinity wants zone In b, c, or disk Exists, and the node has no label disk, the node has zone=a",
		},
		"affinity by fields": {
			nodeAffinity, newPod("p", requires(v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"x"}}}})),
			"its node affinity wants metadata.name In x",
		},
		"host port": {
			hostPorts, newPod("p", withPort(80, "127.0.0.1", v1.ProtocolTCP)),
			`host port 80/TCP is that of container "` + other.Spec.Containers[0].Name + `" of pod default/other`,
		},
		"taints": {
			taints, newPod("p", func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "drain", Operator: v1.TolerationOpExists}} }),
			"the node has the taint gpu=a:NoExecute, which the pod does not tolerate",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := tc.handler(Attributes{Pod: tc.pod, Node: n}.beside(other))
			if r == nil || r.Detail != tc.want {
				t.Errorf("got %+v, want %s", r, tc.want)
			}
		})
	}
}
