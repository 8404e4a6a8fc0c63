package node

import (
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

var (
	_ Nodes  = (*kube.Client)(nil)
	_ Leases = (*kube.Client)(nil)
)

// The whole way over the agent's client and an API server in memory: what is patched there is what
// the status says here.
func TestOverAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New()
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		client, err := kube.Open(kube.Config{REST: server.Config(), Version: "test", Log: log})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, func(c *Config) { c.Nodes, c.Leases = client, client })
		node := func() *v1.Node {
			n, ok := kubetest.Get[*v1.Node](server, "", "n1")
			if !ok {
				t.Fatal("there is no node n1")
			}
			return n
		}
		stop := w.start(t)
		after(time.Minute)
		first := node()
		if !isReady(first.Status.Conditions) || first.UID != w.Current.UID() {
			t.Errorf("node = %+v, want it Ready with UID %s", first, w.Current.UID())
		}
		lease, ok := kubetest.Get[*coordinationv1.Lease](server, v1.NamespaceNodeLease, "n1")
		if !ok || lease.OwnerReferences[0].UID != first.UID {
			t.Errorf("lease = %+v", lease)
		}

		other := first.DeepCopy()
		other.Status.Conditions = append(other.Status.Conditions, v1.NodeCondition{Type: "KernelDeadlock", Status: v1.ConditionFalse})
		other.Labels["theirs"] = "x"
		kubetest.Put(server, other)
		w.machine.set(func(m *machine) {
			m.facts.CPUs = 8
			m.facts.HugePages = map[int64]int64{1 << 30: 0}
		})
		w.Current.Wake()
		synctest.Wait()
		changed := node()
		if _, ok := changed.Status.Capacity["hugepages-2Mi"]; ok || changed.Status.Capacity.Cpu().Value() != 8 {
			t.Errorf("capacity = %v, want 8 CPUs and no huge pages of 2Mi", changed.Status.Capacity)
		}
		if findCondition(changed.Status.Conditions, "KernelDeadlock") < 0 || changed.Labels["theirs"] != "x" {
			t.Errorf("what others wrote is gone: %v, %v", changed.Status.Conditions, changed.Labels)
		}
		if diff := cmp.Diff(first.Status.Addresses, changed.Status.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		stop()

		// The next process finds the Node, and nothing to correct.
		after(time.Minute)
		server.ForgetRequests()
		next := newWorld(t, func(c *Config) { c.Nodes, c.Leases = client, client })
		next.machine.facts = w.machine.facts
		next.start(t)
		after(time.Minute)
		if got := server.Count("patch", "nodes"); got != 0 {
			t.Errorf("the next process corrected the Node %d times, want nothing to correct", got)
		}
		if got := server.Count("patch", "nodes/status"); got != 1 {
			t.Errorf("the next process wrote the status %d times in a minute, want once, the heartbeat", got)
		}
		if next.Current.UID() != first.UID {
			t.Errorf("UID = %s, want %s", next.Current.UID(), first.UID)
		}

		// Stopped for a minute: nothing but time is lost.
		server.Stop()
		after(time.Minute)
		server.Start()
		began := time.Now()
		after(15 * time.Second)
		if lease, _ = kubetest.Get[*coordinationv1.Lease](server, v1.NamespaceNodeLease, "n1"); !lease.Spec.RenewTime.After(began) {
			t.Errorf("the lease was renewed %v, want after %v", lease.Spec.RenewTime, began)
		}
	})
}
