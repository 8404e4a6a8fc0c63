package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
)

func TestPhaseIsCarriedOver(t *testing.T) {
	ran := observed(seen("app", 0, pod.StateRunning))
	evicted := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "low on memory"}
	for _, tt := range []struct {
		name     string
		pod      *v1.Pod
		observed pod.Status
		old      v1.PodStatus
		want     v1.PodStatus
	}{
		{"new", newPod(), observed(), v1.PodStatus{}, v1.PodStatus{Phase: v1.PodPending}},
		{"running", newPod(), ran, v1.PodStatus{Phase: v1.PodPending, Reason: "R", Message: "m"}, v1.PodStatus{Phase: v1.PodRunning}},
		{"same phase", newPod(), ran, v1.PodStatus{Phase: v1.PodRunning, Reason: "R", Message: "m"}, v1.PodStatus{Phase: v1.PodRunning, Reason: "R", Message: "m"}},
		{"terminal in the manager", newPod(), ran, evicted, evicted},
		{"terminal in the API", newPod(func(p *v1.Pod) { p.Status = evicted }), ran, v1.PodStatus{Phase: v1.PodRunning}, evicted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := generate(tt.pod, tt.observed, after(tt.old))
			got := v1.PodStatus{Phase: s.Phase, Reason: s.Reason, Message: s.Message}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestActiveDeadline(t *testing.T) {
	seconds := int64(30)
	limited := func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = &seconds }
	began := at(0)
	ran := observed(seen("app", 0, pod.StateRunning))
	exceeded := v1.PodStatus{Phase: v1.PodFailed, Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	for _, tt := range []struct {
		name     string
		pod      *v1.Pod
		observed pod.Status
		old      v1.PodStatus
		now      int
		began    int
		want     v1.PodStatus
	}{
		{"before", newPod(limited), ran, v1.PodStatus{StartTime: &began}, 29, 0, v1.PodStatus{Phase: v1.PodRunning}},
		{"at", newPod(limited), ran, v1.PodStatus{StartTime: &began}, 30, 0, exceeded},
		{"at, the clock was set ahead meanwhile", newPod(limited), ran, v1.PodStatus{StartTime: &began}, 30030, 30000, exceeded},
		{"before, the clock was set ahead meanwhile", newPod(limited), ran, v1.PodStatus{StartTime: &began}, 30029, 30000, v1.PodStatus{Phase: v1.PodRunning}},
		{"not begun", newPod(limited), ran, v1.PodStatus{}, 3000, 0, v1.PodStatus{Phase: v1.PodRunning}},
		{"none", newPod(), ran, v1.PodStatus{StartTime: &began}, 3000, 0, v1.PodStatus{Phase: v1.PodRunning}},
		{"ended in time, seen late", newPod(limited, withPolicy(v1.RestartPolicyNever)), observed(seenExited("app", 0, 0)), v1.PodStatus{StartTime: &began}, 3000, 0, v1.PodStatus{Phase: v1.PodSucceeded}},
		{"stays", newPod(limited), ran, v1.PodStatus{StartTime: &began, Phase: v1.PodFailed, Reason: "DeadlineExceeded", Message: exceeded.Message}, 0, 0, exceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := generate(tt.pod, tt.observed, after(tt.old), func(in *Input) { in.Now, in.Began = at(tt.now).Time, at(tt.began).Time })
			got := v1.PodStatus{Phase: s.Phase, Reason: s.Reason, Message: s.Message}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if c := condition(s, v1.PodReady); (c.Status == v1.ConditionTrue) == pod.IsTerminal(s.Phase) {
				t.Errorf("in phase %s the pod's readiness is %s", s.Phase, c.Status)
			}
		})
	}
}

// The answer must be of the monotonic clock, or else the pod ends when the host's clock is set.
func TestOnClockOf(t *testing.T) {
	now := time.Now()
	if now == now.Round(0) {
		t.Fatal("the clock of this process is not monotonic")
	}
	for name, tc := range map[string]struct{ at, want time.Time }{
		"past":   {now.Round(0).Add(-time.Hour), now.Add(-time.Hour)},
		"now":    {now.Round(0), now},
		"future": {now.Round(0).AddDate(10, 0, 0), now},
	} {
		if got := onClockOf(now, tc.at); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

func TestQOSClass(t *testing.T) {
	guaranteed := newPod(func(p *v1.Pod) {
		r := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi")}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: r, Requests: r}
	})
	if got := generate(guaranteed, observed()).QOSClass; got != v1.PodQOSGuaranteed {
		t.Errorf("computed class is %s, want Guaranteed", got)
	}
	if got := generate(guaranteed, observed(), after(v1.PodStatus{QOSClass: v1.PodQOSBurstable})).QOSClass; got != v1.PodQOSBurstable {
		t.Errorf("class with a known one is %s, want the known one", got)
	}
	guaranteed.Status.QOSClass = v1.PodQOSBurstable
	if got := generate(guaranteed, observed()).QOSClass; got != v1.PodQOSBurstable {
		t.Errorf("class with one in the API is %s, want that one", got)
	}
}

func TestPodLevelResources(t *testing.T) {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}
	s := generate(newPod(func(p *v1.Pod) { p.Spec.Resources = &r }), observed())
	if diff := cmp.Diff(&r, s.Resources); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(r.Requests, s.AllocatedResources); diff != "" {
		t.Errorf("allocated resources (-want +got):\n%s", diff)
	}
}

func TestForeignFields(t *testing.T) {
	claim := "claim-1"
	p := newPod(func(p *v1.Pod) {
		p.Status.NominatedNodeName = "node-2"
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
	})
	s := generate(p, observed())
	if s.NominatedNodeName != "node-2" || len(s.ResourceClaimStatuses) != 1 {
		t.Fatalf("fields of others are lost: %+v", s)
	}
	*s.ResourceClaimStatuses[0].ResourceClaimName = "other"
	if claim != "claim-1" {
		t.Error("the generated status shares memory with the pod")
	}
}

func TestIPs(t *testing.T) {
	type addresses struct {
		HostIP string
		Hosts  []string
		PodIP  string
		Pods   []string
	}
	ready := func(ips ...string) pod.Status {
		return pod.Status{IPs: ips, Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true, IPs: ips}}}
	}
	oldIPs := func(ips ...string) v1.PodStatus {
		s := v1.PodStatus{}
		for _, ip := range ips {
			s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
		}
		return s
	}
	hostNetwork := newPod(func(p *v1.Pod) { p.Spec.HostNetwork = true })
	for _, tt := range []struct {
		name     string
		pod      *v1.Pod
		hosts    []string
		observed pod.Status
		old      v1.PodStatus
		want     addresses
	}{
		{name: "nothing known"},
		{
			name: "one family", hosts: []string{"192.168.0.1"}, observed: ready("10.0.0.2"),
			want: addresses{"192.168.0.1", []string{"192.168.0.1"}, "10.0.0.2", []string{"10.0.0.2"}},
		},
		{
			name: "node's family first", hosts: []string{"192.168.0.1", "fd00::1"}, observed: ready("fd00:1::2", "10.0.0.2"),
			want: addresses{"192.168.0.1", []string{"192.168.0.1", "fd00::1"}, "10.0.0.2", []string{"10.0.0.2", "fd00:1::2"}},
		},
		{
			name: "runtime's order when the node has no address", observed: ready("fd00:1::2", "10.0.0.2"),
			want: addresses{PodIP: "fd00:1::2", Pods: []string{"fd00:1::2", "10.0.0.2"}},
		},
		{
			name: "at most one of a family", hosts: []string{"192.168.0.1", "192.168.0.2"}, observed: ready("10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3"),
			want: addresses{"192.168.0.1", []string{"192.168.0.1"}, "10.0.0.2", []string{"10.0.0.2", "fd00::2"}},
		},
		{
			name: "canonical form", hosts: []string{"FD00:0::1"}, observed: ready("fd00:0:0:0::2", "nonsense"),
			want: addresses{"fd00::1", []string{"fd00::1"}, "fd00::2", []string{"fd00::2"}},
		},
		{
			name: "ended pods keep theirs", observed: pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "s"}}}, old: oldIPs("10.0.0.2"),
			want: addresses{PodIP: "10.0.0.2", Pods: []string{"10.0.0.2"}},
		},
		{
			name: "a new sandbox has new ones", observed: ready("10.0.0.9"), old: oldIPs("10.0.0.2"),
			want: addresses{PodIP: "10.0.0.9", Pods: []string{"10.0.0.9"}},
		},
		{
			name: "host network", pod: hostNetwork, hosts: []string{"192.168.0.1", "fd00::1"},
			want: addresses{"192.168.0.1", []string{"192.168.0.1", "fd00::1"}, "192.168.0.1", []string{"192.168.0.1", "fd00::1"}},
		},
		{
			name: "host network is sticky", pod: hostNetwork, hosts: []string{"192.168.0.7"}, old: oldIPs("192.168.0.1"),
			want: addresses{"192.168.0.7", []string{"192.168.0.7"}, "192.168.0.1", []string{"192.168.0.1"}},
		},
		{
			name: "host network gains a family", pod: hostNetwork, hosts: []string{"192.168.0.7", "fd00::7"}, old: oldIPs("192.168.0.1"),
			want: addresses{"192.168.0.7", []string{"192.168.0.7", "fd00::7"}, "192.168.0.1", []string{"192.168.0.1", "fd00::7"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pod
			if p == nil {
				p = newPod()
			}
			s := generate(p, tt.observed, after(tt.old), func(in *Input) { in.HostIPs = tt.hosts })
			got := addresses{HostIP: s.HostIP, PodIP: s.PodIP}
			for _, ip := range s.HostIPs {
				got.Hosts = append(got.Hosts, ip.IP)
			}
			for _, ip := range s.PodIPs {
				got.Pods = append(got.Pods, ip.IP)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}
