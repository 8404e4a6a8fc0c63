//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The node registers itself as what it is, is ready, and keeps its lease.
func TestClusterNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	n, err := c.client.GetNode(c.ctx, c.name)
	if err != nil {
		t.Fatal(err)
	}

	if got, want := n.Status.Capacity.Cpu().Value(), int64(runtime.NumCPU()); got != want {
		t.Errorf("the node has %d CPUs, this host %d", got, want)
	}
	if got, want := n.Status.Capacity.Memory().Value(), memoryTotal(t); got != want {
		t.Errorf("the node has %d bytes of memory, this host %d", got, want)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(c.place.Root, &disk); err != nil {
		t.Fatal(err)
	}
	if got, want := n.Status.Capacity.StorageEphemeral().Value(), int64(disk.Blocks)*disk.Bsize; got != want {
		t.Errorf("the node has %d bytes of storage, the root directory's file system %d", got, want)
	}
	if got := n.Status.Capacity.Pods().Value(); got != 110 {
		t.Errorf("the node takes %d pods, want the default of 110", got)
	}
	for name, capacity := range n.Status.Capacity {
		if a, ok := n.Status.Allocatable[name]; !ok || a.Cmp(capacity) > 0 {
			t.Errorf("of %s the node has %v and gives %v to pods", name, &capacity, &a)
		}
	}

	for kind, want := range map[v1.NodeConditionType]v1.ConditionStatus{
		v1.NodeReady: v1.ConditionTrue, v1.NodeMemoryPressure: v1.ConditionFalse, v1.NodeDiskPressure: v1.ConditionFalse, v1.NodePIDPressure: v1.ConditionFalse,
	} {
		if got := nodeCondition(n, kind); got.Status != want || got.Reason == "" || got.Message == "" || got.LastTransitionTime.IsZero() || got.LastHeartbeatTime.IsZero() {
			t.Errorf("the condition %s is %+v, want %s with all that there is to it", kind, got, want)
		}
	}
	addresses := map[v1.NodeAddressType]string{}
	for _, a := range n.Status.Addresses {
		addresses[a.Type] = a.Address
	}
	if addresses[v1.NodeHostName] != c.name {
		t.Errorf("the node's name is %q, want %q", addresses[v1.NodeHostName], c.name)
	}
	if want := nodeAddress(t); want != "" && addresses[v1.NodeInternalIP] != want {
		t.Errorf("the node's address is %q, want %q", addresses[v1.NodeInternalIP], want)
	}
	if got := n.Status.DaemonEndpoints.KubeletEndpoint.Port; int(got) != c.port {
		t.Errorf("the node's port is %d, want %d", got, c.port)
	}
	for label, want := range map[string]string{v1.LabelHostname: c.name, v1.LabelOSStable: "linux", v1.LabelArchStable: runtime.GOARCH} {
		if got := n.Labels[label]; got != want {
			t.Errorf("the label %s is %q, want %q", label, got, want)
		}
	}
	info := n.Status.NodeInfo
	if info.KubeletVersion == "" || info.ContainerRuntimeVersion == "" || info.KernelVersion == "" || info.MachineID == "" && exists(t, "/etc/machine-id") ||
		info.BootID == "" || info.OSImage == "" || info.OperatingSystem != "linux" || info.Architecture != runtime.GOARCH {
		t.Errorf("of the host the node tells %+v", info)
	}
	until(t, "the taints of a new node to go", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeNotReady })
	})
	until(t, "the hello image to be listed", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && slices.ContainsFunc(n.Status.Images, func(i v1.ContainerImage) bool { return slices.Contains(i.Names, helloImage) })
	})

	first, err := c.client.GetLease(c.ctx, v1.NamespaceNodeLease, c.name)
	if err != nil {
		t.Fatal(err)
	}
	if o := first.OwnerReferences; len(o) != 1 || o[0].UID != n.UID || first.Spec.HolderIdentity == nil || *first.Spec.HolderIdentity != c.name {
		t.Errorf("the lease belongs to %v and is held by %v, want the node", o, first.Spec.HolderIdentity)
	}
	until(t, "the lease to be renewed twice", func() bool {
		now, err := c.client.GetLease(c.ctx, v1.NamespaceNodeLease, c.name)
		// It is renewed each quarter of its duration.
		return err == nil && now.Spec.RenewTime.Sub(first.Spec.RenewTime.Time).Seconds() > float64(*first.Spec.LeaseDurationSeconds)/4
	})

	// A pressure that nobody has measured neither taints the node nor keeps the scheduler's pods
	// away; an extended resource that the Node has is counted.
	c.kubectl("patch", "node", c.name, "--subresource=status", "--type=merge", "-p", `{"status":{"capacity":{"example.com/gpu":"2"}}}`)
	wantDevices := func(amount string) {
		t.Helper()
		until(t, "the node to have and give "+amount+" devices", func() bool {
			n, err := c.client.GetNode(c.ctx, c.name)
			if err != nil {
				return false
			}
			has, gives := n.Status.Capacity["example.com/gpu"], n.Status.Allocatable["example.com/gpu"]
			return has.String() == amount && gives.String() == amount
		})
	}
	wantDevices("2")
	c.create(c.devicePod("first"))
	before := c.awaitAPIReady("first")
	body := c.bodies(before)
	if n, err = c.client.GetNode(c.ctx, c.name); err != nil || len(n.Spec.Taints) > 0 {
		t.Errorf("taints %v of a node whose pressure is Unknown, error %v", n.Spec.Taints, err)
	}

	// An agent that does not know what plugins offered before it takes it that the node has no
	// devices: a pod that asks for one, though somebody has sent it here, is refused; the one that
	// runs goes on.
	a.kill()
	if err := os.RemoveAll(filepath.Join(c.place.Root, "device-plugins", "kubelet_internal_checkpoint")); err != nil {
		t.Fatal(err)
	}
	c.startMember()
	wantDevices("0")
	second := c.devicePod("second")
	second.Spec.NodeSelector, second.Spec.NodeName = nil, c.name
	c.create(second)
	c.awaitAPI("the second pod to be refused", func(p pods) bool {
		refused := p.named("second")
		return refused != nil && refused.Status.Phase == v1.PodFailed && refused.Status.Reason == "OutOfexample.com/gpu" &&
			strings.Contains(refused.Status.Message, `container "main" asks for example.com/gpu`)
	})
	after := c.awaitAPIReady("first")
	if diff := cmp.Diff(lives(before), lives(after)); diff != "" || c.bodies(after)["first/main"] != body["first/main"] {
		t.Errorf("the pod that ran changed (-before +after):\n%s", diff)
	}
}

// devicePod is a pod that asks for a device.
func (c *cluster) devicePod(name string) *v1.Pod {
	p := c.helloPod(name, "sleep")
	one := v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: one, Limits: one}
	return p
}

// memoryTotal is the host's memory in bytes.
func memoryTotal(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// A node that is deleted by hand stays deleted until an agent starts, and what runs on it is not
// touched.
func TestClusterDeletedNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	c.create(c.helloPod("web", "serve"))
	before := c.awaitAPIReady("web")
	old, err := c.client.GetNode(c.ctx, c.name)
	if err != nil {
		t.Fatal(err)
	}
	body := c.bodies(before)
	c.kubectl("delete", "node", c.name)
	c.stays("the node is deleted", 3*time.Second, func() bool {
		_, err := c.client.GetNode(c.ctx, c.name)
		return apierrors.IsNotFound(err)
	})
	a.kill()
	c.startMember()
	if n, err := c.client.GetNode(c.ctx, c.name); err != nil || n.UID == old.UID {
		t.Errorf("the node is %v, error %v; want a new one", n, err)
	}
	after := c.awaitAPIReady("web")
	if diff := cmp.Diff(lives(before), lives(after)); diff != "" || c.bodies(after)["web/main"] != body["web/main"] {
		t.Errorf("the pod changed with the node (-before +after):\n%s", diff)
	}
}
