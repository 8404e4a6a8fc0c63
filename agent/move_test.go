package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
)

// A machine that gets another address, as by DHCP, has its pods and its Node say so at once.
func TestMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Join()
		bind(w, "web")
		w.Settle(time.Minute)
		const first, second = "192.0.2.10", "192.0.2.77"
		want := func(when, address string) {
			t.Helper()
			p, _ := kubetest.Get[*v1.Pod](w.API, "default", "web")
			if diff := cmp.Diff([]v1.HostIP{{IP: address}}, p.Status.HostIPs); diff != "" || p.Status.HostIP != address {
				t.Errorf("%s: hostIP %s, hostIPs (-want +got):\n%s", when, p.Status.HostIP, diff)
			}
			n, _ := kubetest.Get[*v1.Node](w.API, "", agenttest.NodeName)
			if len(n.Status.Addresses) == 0 || n.Status.Addresses[0].Address != address {
				t.Errorf("%s: the Node's addresses are %v", when, n.Status.Addresses)
			}
		}
		want("before", first)
		w.Move(second)
		w.Settle(2 * time.Second)
		want("after", second)
	})
}
