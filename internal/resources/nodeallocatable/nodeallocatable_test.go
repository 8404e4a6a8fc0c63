package nodeallocatable

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/cluster/node"
	"berth/internal/config"
	"berth/internal/host/cgroups"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/crispec"
)

// configured returns the configuration of a file with these fields.
func configured(t *testing.T, fields string) *config.Kubelet {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + fields
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"config": file, "kubeconfig": filepath.Join(t.TempDir(), "none")}
	flags := config.NewFlags()
	for _, f := range flags.All() {
		if value, ok := values[f.Name]; ok {
			if err := f.Set(value); err != nil {
				t.Fatal(err)
			}
		}
	}
	k, err := config.Load(flags)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// machine has 4 CPUs, 8 GiB of memory and 2 GiB of swap.
var machine = node.Machine{CPUs: 4, Memory: 8 << 30, Swap: 2 << 30, PIDs: 30000}

// What is held to what: all pods together to what is not reserved, daemons to what is reserved for
// them, each as far as enforceNodeAllocatable says.
func TestComputeLimits(t *testing.T) {
	const reservations = `
kubeReserved: {cpu: 500m, memory: 1Gi, pid: "1000"}
systemReserved: {cpu: 250m, memory: 512Mi, pid: "2000"}
kubeReservedCgroup: /kube
systemReservedCgroup: /system
evictionHard: {memory.available: 512Mi}
`
	all := cgroups.Allocatable{MilliCPU: 3250, MemoryBytes: 6656 << 20, Pids: 27000}
	for _, c := range []struct {
		name     string
		fields   string
		kubepods cgroups.Allocatable
		reserved []cgroups.Reserved
	}{
		{
			name: "pods", fields: reservations, kubepods: all,
		},
		{
			name: "nothing", fields: reservations + "enforceNodeAllocatable: [none]\n", kubepods: cgroups.Allocatable{MilliCPU: 3250},
		},
		{
			name: "daemons too", fields: reservations + "enforceNodeAllocatable: [pods, kube-reserved, system-reserved]\n", kubepods: all,
			reserved: []cgroups.Reserved{
				{Field: "systemReservedCgroup", Cgroup: "/system", Resources: cgroups.Allocatable{MilliCPU: 250, MemoryBytes: 512 << 20, Pids: 2000}},
				{Field: "kubeReservedCgroup", Cgroup: "/kube", Resources: cgroups.Allocatable{MilliCPU: 500, MemoryBytes: 1 << 30, Pids: 1000}},
			},
		},
		{
			name: "the CPU of daemons", fields: reservations + "enforceNodeAllocatable: [pods, kube-reserved-compressible]\n", kubepods: all,
			reserved: []cgroups.Reserved{{Field: "kubeReservedCgroup", Cgroup: "/kube", Resources: cgroups.Allocatable{MilliCPU: 500}}},
		},
		{
			name: "more than there is", fields: `systemReserved: {cpu: "8", memory: 16Gi, pid: "40000"}` + "\n",
		},
	} {
		r, err := Compute(Input{Config: configured(t, c.fields), Machine: machine, Host: Host{CgroupVersion: 2}})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.kubepods, r.Kubepods); diff != "" {
			t.Errorf("%s: kubepods (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.reserved, r.Reserved); diff != "" {
			t.Errorf("%s: reserved (-want +got):\n%s", c.name, diff)
		}
	}
}

// What is reported as allocatable leaves out the hard eviction thresholds, which kubepods may
// reach.
func TestComputeAllocatable(t *testing.T) {
	r, err := Compute(Input{
		Config: configured(t, "maxPods: 50\npodsPerCore: 10\nkubeReserved: {memory: 1Gi}\nevictionHard: {memory.available: 1Gi}\n"), Machine: machine,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("6Gi"), v1.ResourcePods: resource.MustParse("40")}
	for name, q := range want {
		if got := r.Allocatable[name]; got.Cmp(q) != 0 {
			t.Errorf("allocatable %s: %s, want %s", name, got.String(), q.String())
		}
	}
	if memory := r.Capacity.Memory(); memory.Value() != machine.Memory {
		t.Errorf("capacity of memory: %s", memory)
	}
	if r.Kubepods.MemoryBytes != 7<<30 {
		t.Errorf("kubepods may use %d bytes", r.Kubepods.MemoryBytes)
	}
}

func TestComputeSettings(t *testing.T) {
	host := Host{CgroupVersion: 2, SwapAccounted: true, HugePageSizes: []int64{2 << 20}}
	plain := crispec.ResourceSettings{
		NodeMemory: 8 << 30, NodeSwap: 2 << 30, CgroupVersion: 2, SwapAccounted: true, HugePageSizes: []int64{2 << 20}, KillTogether: true,
	}
	with := func(change func(*crispec.ResourceSettings)) crispec.ResourceSettings {
		s := plain
		change(&s)
		return s
	}
	quota := cgroups.CPUQuota{Off: true, Period: 50 * time.Millisecond}
	usual := cgroups.CPUQuota{Period: 100 * time.Millisecond}
	qos := &cgroups.MemoryQoS{ThrottlingFactor: 0.8, Allocatable: 8 << 30, Reserve: true}
	const qosFields = "featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: 0.8\nmemoryReservationPolicy: TieredReservation\nevictionHard: {memory.available: 0%}\n"
	for _, c := range []struct {
		name       string
		conf       *config.Kubelet
		version    int
		containers crispec.ResourceSettings
		pods       cgroups.Settings
	}{
		{name: "no configuration", version: 2, containers: plain},
		{
			name: "defaults", conf: configured(t, ""), version: 2,
			containers: with(func(s *crispec.ResourceSettings) { s.CPUQuota = usual }),
			pods:       cgroups.Settings{PodPidsLimit: -1, CPUQuota: usual},
		},
		{
			name: "quota, swap, one process", version: 2,
			conf: configured(t, "cpuCFSQuota: false\ncpuCFSQuotaPeriod: 50ms\npodPidsLimit: 100\nmemorySwap: {swapBehavior: LimitedSwap}\n"+
				"singleProcessOOMKill: true\nfeatureGates: {CustomCPUCFSQuotaPeriod: true}\n"),
			containers: with(func(s *crispec.ResourceSettings) { s.CPUQuota, s.LimitedSwap, s.KillTogether = quota, true, false }),
			pods:       cgroups.Settings{PodPidsLimit: 100, CPUQuota: quota},
		},
		{
			name: "memory QoS", version: 2, conf: configured(t, qosFields),
			containers: with(func(s *crispec.ResourceSettings) { s.CPUQuota, s.MemoryQoS = usual, qos }),
			pods:       cgroups.Settings{PodPidsLimit: -1, CPUQuota: usual, MemoryQoS: qos},
		},
		{
			name: "memory QoS on cgroup v1", version: 1, conf: configured(t, qosFields),
			containers: with(func(s *crispec.ResourceSettings) { s.CPUQuota, s.CgroupVersion = usual, 1 }),
			pods:       cgroups.Settings{PodPidsLimit: -1, CPUQuota: usual},
		},
	} {
		host.CgroupVersion = c.version
		r, err := Compute(Input{Config: c.conf, MaxPods: 110, Machine: machine, Host: host})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.containers, r.Containers); diff != "" {
			t.Errorf("%s: containers (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.pods, r.Pods); diff != "" {
			t.Errorf("%s: pods (-want +got):\n%s", c.name, diff)
		}
	}
}

// groups is a containerManager that fails where a test wants it.
type groups struct {
	calls    []string
	reserved error
	failures int // of EnforceAllocatable
}

func (g *groups) EnsureQoS(context.Context) error {
	g.calls = append(g.calls, "QoS")
	return nil
}

func (g *groups) EnforceReserved(r cgroups.Reserved) error {
	g.calls = append(g.calls, r.Field)
	return g.reserved
}

func (g *groups) EnforceAllocatable() error {
	g.failures--
	if g.failures >= 0 {
		return errors.New("no such cgroup")
	}
	return nil
}

// recorder writes events down.
type recorder []string

func (r *recorder) NodeEvent(eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	*r = append(*r, eventtype+" "+reason+": "+message)
}

func TestEnforceReserved(t *testing.T) {
	resources := &Resources{Reserved: []cgroups.Reserved{{Field: "systemReservedCgroup", Cgroup: "/system"}, {Field: "kubeReservedCgroup", Cgroup: "/kube"}}}
	for _, c := range []struct {
		name   string
		groups groups
		calls  []string
		events recorder
	}{
		{
			name: "done", calls: []string{"QoS", "systemReservedCgroup", "kubeReservedCgroup"},
			events: recorder{
				"Normal NodeAllocatableEnforced: Updated limits on system reserved cgroup /system",
				"Normal NodeAllocatableEnforced: Updated limits on kube reserved cgroup /kube",
			},
		},
		{
			name: "refused", groups: groups{reserved: errors.New("no such cgroup")}, calls: []string{"QoS", "systemReservedCgroup"},
			events: recorder{`Warning FailedNodeAllocatableEnforcement: Failed to enforce System Reserved Cgroup Limits on "/system": no such cgroup`},
		},
	} {
		var events recorder
		if err := (Enforcer{resources, &events}).EnforceReserved(t.Context(), &c.groups); !errors.Is(err, c.groups.reserved) {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.calls, c.groups.calls); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.events, events); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", c.name, diff)
		}
	}
}

// The limit of all pods is tried until it succeeds, with a pause, and each outcome is an event.
func TestEnforceAllocatable(t *testing.T) {
	const failed = "Warning FailedNodeAllocatableEnforcement: Failed to update Node Allocatable Limits: no such cgroup"
	for _, c := range []struct {
		name     string
		pods     bool
		failures int
		events   recorder
	}{
		{"at once", true, 0, recorder{"Normal NodeAllocatableEnforced: Updated Node Allocatable limit across pods"}},
		{"the third time", true, 2, recorder{failed, failed, "Normal NodeAllocatableEnforced: Updated Node Allocatable limit across pods"}},
		{"nothing is enforced", false, 0, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			var events recorder
			e := Enforcer{&Resources{EnforcesPods: c.pods}, &events}
			if err := e.EnforceAllocatable(t.Context(), &groups{failures: c.failures}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if diff := cmp.Diff(c.events, events); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", c.name, diff)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*retryPeriod)
		defer cancel()
		if err := (Enforcer{&Resources{}, new(recorder)}).EnforceAllocatable(ctx, &groups{failures: 100}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
	})
}
