//go:build e2e

package e2e

import (
	"testing"

	"berth/internal/kube"
	"berth/internal/kube/kubetest"
)

// TestKubeContract runs the contract suite of the fake API server over a real one.
func TestKubeContract(t *testing.T) {
	c := newControlPlane(t)
	c.up()
	c.must("stop-apiserver")
	c.must("start-apiserver") // it remembers changes only since it started
	config, err := kube.LoadKubeconfig(c.dir + "/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	kubetest.RunContract(t, func(*testing.T) kubetest.Target {
		// The objects that a server makes for itself in the beginning have versions above 1.
		return kubetest.Target{Config: config, Forgotten: func() string { return "1" }}
	})
}
