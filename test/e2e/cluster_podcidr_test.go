//go:build e2e

package e2e

import (
	"net/netip"
	"strings"
	"testing"
)

// A pod has an address of the range that the cluster has given its Node, and the Node is ready once
// it has one. The next agent goes on with the same.
func TestClusterPodCIDR(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startKubelet()
	text := c.kubectl("get", "node", c.name, "-o", "jsonpath={.spec.podCIDR}")
	podCIDR, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("the Node has the range %q: %v", text, err)
	}
	wantText(t, "the log", a.said(), "the container runtime knows the range of the pods' addresses", podCIDR.String())
	c.create(c.helloPod("web", "serve"))
	ip := c.awaitAPIReady("web").named("web").Status.PodIP
	if got, err := netip.ParseAddr(ip); err != nil || !podCIDR.Contains(got) {
		t.Errorf("the pod has %q, want an address of %s", ip, podCIDR)
	}
}
