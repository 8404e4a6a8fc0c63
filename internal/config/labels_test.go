package config

import "testing"

func TestMayLabelItself(t *testing.T) {
	for key, want := range map[string]bool{
		"plain": true, "example.com/x": true, "kubernetes.io/os": true, "kubernetes.io/hostname": true, "topology.kubernetes.io/zone": true, "beta.kubernetes.io/arch": true,
		"node.kubernetes.io/x": true, "kubelet.kubernetes.io/x": true, "sub.node.kubernetes.io/x": true, "notkubernetes.io/x": true, "node.kubernetes.io/instance-type": true,
		"kubernetes.io/x": false, "k8s.io/x": false, "node-role.kubernetes.io/control-plane": false, "node-restriction.kubernetes.io/x": false, "x.k8s.io/x": false,
	} {
		if got := mayLabelItself(key); got != want {
			t.Errorf("%s: %t, want %t", key, got, want)
		}
	}
}
