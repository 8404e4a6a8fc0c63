package cgroups

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// list reads "cpu", "1", "memory", "1Gi"…
func list(kv ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[v1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

// needs is a container with the API's defaults: what has a limit and no request has a request of
// the same amount.
func needs(requests, limits v1.ResourceList) v1.Container {
	all := maps.Clone(limits)
	if all == nil {
		all = v1.ResourceList{}
	}
	maps.Copy(all, requests)
	return v1.Container{Resources: v1.ResourceRequirements{Requests: all, Limits: limits}}
}

func sidecar(c v1.Container) v1.Container {
	c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	return c
}

func TestPodValues(t *testing.T) {
	const Mi = 1 << 20
	tests := map[string]struct {
		spec  v1.PodSpec
		pids  int64
		class v1.PodQOSClass
		want  podValues
	}{
		"nothing stated": {
			spec:  v1.PodSpec{Containers: []v1.Container{{}, {}}},
			class: v1.PodQOSBestEffort,
			want:  podValues{shares: 2},
		},
		"other resources do not make a class": {
			spec:  v1.PodSpec{Containers: []v1.Container{needs(list("ephemeral-storage", "1Gi"), nil)}},
			pids:  100,
			class: v1.PodQOSBestEffort,
			want:  podValues{shares: 2, pids: 100},
		},
		"zero requests are none": {
			spec:  v1.PodSpec{Containers: []v1.Container{needs(list("cpu", "0"), list("memory", "0"))}},
			class: v1.PodQOSBestEffort,
			want:  podValues{shares: 2},
		},
		"best effort keeps its shares with an overhead": {
			spec:  v1.PodSpec{Containers: []v1.Container{{}}, Overhead: list("cpu", "250m", "memory", "120Mi")},
			class: v1.PodQOSBestEffort,
			want:  podValues{shares: 2},
		},
		"guaranteed": {
			spec: v1.PodSpec{Containers: []v1.Container{
				needs(list("cpu", "500m", "memory", "64Mi"), list("cpu", "500m", "memory", "64Mi")),
				needs(nil, list("cpu", "250m", "memory", "64Mi")),
			}},
			class: v1.PodQOSGuaranteed,
			want:  podValues{shares: 768, quota: 75_000, period: QuotaPeriod, memory: 128 * Mi},
		},
		"guaranteed with overhead": {
			spec: v1.PodSpec{
				Containers: []v1.Container{needs(nil, list("cpu", "1", "memory", "64Mi"))},
				Overhead:   list("cpu", "500m", "memory", "16Mi"),
			},
			class: v1.PodQOSGuaranteed,
			want:  podValues{shares: 1536, quota: 150_000, period: QuotaPeriod, memory: 80 * Mi},
		},
		"an init container without limits is burstable": {
			spec: v1.PodSpec{
				InitContainers: []v1.Container{{}},
				Containers:     []v1.Container{needs(nil, list("cpu", "1", "memory", "64Mi"))},
			},
			class: v1.PodQOSBurstable,
			want:  podValues{shares: 1024},
		},
		"an ephemeral container does not count": {
			spec: v1.PodSpec{
				Containers:          []v1.Container{needs(nil, list("cpu", "1", "memory", "64Mi"))},
				EphemeralContainers: []v1.EphemeralContainer{{}},
			},
			class: v1.PodQOSGuaranteed,
			want:  podValues{shares: 1024, quota: 100_000, period: QuotaPeriod, memory: 64 * Mi},
		},
		"burstable, one container without a memory limit": {
			spec: v1.PodSpec{Containers: []v1.Container{
				needs(list("cpu", "100m"), list("cpu", "200m", "memory", "64Mi")),
				needs(nil, list("cpu", "300m")),
			}},
			class: v1.PodQOSBurstable,
			want:  podValues{shares: 409, quota: 50_000, period: QuotaPeriod},
		},
		"only a request of memory": {
			spec:  v1.PodSpec{Containers: []v1.Container{needs(list("memory", "64Mi"), nil)}},
			class: v1.PodQOSBurstable,
			want:  podValues{shares: 2},
		},
		"init peaks and sidecars": {
			spec: v1.PodSpec{
				InitContainers: []v1.Container{
					needs(list("cpu", "2"), list("cpu", "2")),              // 2 alone
					sidecar(needs(list("cpu", "1"), list("cpu", "1"))),     // stays
					needs(list("cpu", "3"), list("cpu", "3")),              // 3 beside the sidecar
					sidecar(needs(list("cpu", "1"), list("cpu", "1500m"))), // stays
				},
				Containers: []v1.Container{needs(list("cpu", "500m"), list("cpu", "500m"))},
			},
			class: v1.PodQOSBurstable,
			want:  podValues{shares: 4096, quota: 400_000, period: QuotaPeriod},
		},
		"pod level decides": {
			spec: v1.PodSpec{
				Resources:  &v1.ResourceRequirements{Requests: list("cpu", "1", "memory", "32Mi"), Limits: list("cpu", "1", "memory", "32Mi")},
				Containers: []v1.Container{needs(list("cpu", "100m"), nil), {}},
			},
			class: v1.PodQOSGuaranteed,
			want:  podValues{shares: 1024, quota: 100_000, period: QuotaPeriod, memory: 32 * Mi},
		},
		"pod level limit only": {
			spec: v1.PodSpec{
				Resources:  &v1.ResourceRequirements{Requests: list("memory", "32Mi"), Limits: list("memory", "32Mi")},
				Containers: []v1.Container{needs(list("cpu", "100m"), nil), {}},
			},
			class: v1.PodQOSBurstable,
			want:  podValues{shares: 102, memory: 32 * Mi},
		},
		"huge pages": {
			spec: v1.PodSpec{Containers: []v1.Container{
				needs(nil, list("cpu", "1", "memory", "64Mi", "hugepages-2Mi", "4Mi", "hugepages-1Gi", "1Gi")),
				needs(nil, list("cpu", "1", "memory", "64Mi", "hugepages-2Mi", "2Mi")),
			}},
			class: v1.PodQOSGuaranteed,
			want:  podValues{shares: 2048, quota: 200_000, period: QuotaPeriod, memory: 128 * Mi, hugePages: map[int64]int64{2 * Mi: 6 * Mi, 1024 * Mi: 1024 * Mi}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{Spec: tt.spec}
			before := p.DeepCopy()
			if got := QOSClass(p); got != tt.class {
				t.Errorf("class %s, want %s", got, tt.class)
			}
			if tt.want.hugePages == nil {
				tt.want.hugePages = map[int64]int64{}
			}
			if diff := cmp.Diff(tt.want, computePodValues(p, Settings{PodPidsLimit: tt.pids}), cmp.AllowUnexported(podValues{})); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, p); diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
		})
	}
}

// A container with CPUs of its own has them whole, and its pod must not take that back.
func TestPodsWithCPUsOfTheirOwnHaveNoQuota(t *testing.T) {
	whole, part := needs(nil, list("cpu", "2", "memory", "64Mi")), needs(nil, list("cpu", "500m", "memory", "64Mi"))
	podLevel := v1.PodSpec{Containers: []v1.Container{whole}, Resources: &v1.ResourceRequirements{Limits: whole.Resources.Limits, Requests: whole.Resources.Limits}}
	for name, tt := range map[string]struct {
		spec  v1.PodSpec
		quota CPUQuota
		want  int64
	}{
		"shared CPUs":              {v1.PodSpec{Containers: []v1.Container{whole}}, CPUQuota{}, 200_000},
		"own CPUs":                 {v1.PodSpec{Containers: []v1.Container{whole}}, CPUQuota{OwnCPUs: true}, 0},
		"one of two has its own":   {v1.PodSpec{Containers: []v1.Container{part, whole}}, CPUQuota{OwnCPUs: true}, 0},
		"parts of CPUs are shared": {v1.PodSpec{Containers: []v1.Container{part}}, CPUQuota{OwnCPUs: true}, 50_000},
		"resources at pod level":   {podLevel, CPUQuota{OwnCPUs: true}, 200_000},
		"burstable":                {v1.PodSpec{Containers: []v1.Container{needs(list("cpu", "2", "memory", "1Mi"), list("cpu", "2", "memory", "64Mi"))}}, CPUQuota{OwnCPUs: true}, 200_000},
	} {
		t.Run(name, func(t *testing.T) {
			if got := computePodValues(&v1.Pod{Spec: tt.spec}, Settings{CPUQuota: tt.quota}).quota; got != tt.want {
				t.Errorf("quota %d, want %d", got, tt.want)
			}
		})
	}
}

func TestHostLeavesOutWhatItLacks(t *testing.T) {
	v := podValues{shares: 1024, quota: 50_000, period: QuotaPeriod, memory: 1 << 20, pids: 5, hugePages: map[int64]int64{2 << 20: 4 << 20}}
	full := host{
		version:   1,
		has:       map[string]bool{"cpu": true, "memory": true, "pids": true, "hugetlb": true},
		pageSizes: map[int64]string{2 << 20: "2MB", 1 << 30: "1GB"},
	}
	r := full.resources(v)
	if r.CpuShares != 1024 || r.CpuWeight != 0 || r.CpuQuota != 50_000 || r.CpuPeriod != QuotaPeriod || r.Memory != 1<<20 || *r.PidsLimit != 5 {
		t.Errorf("version 1: %+v", r)
	}
	pages := map[string]uint64{}
	for _, l := range r.HugetlbLimit {
		pages[l.Pagesize] = l.Limit
	}
	if diff := cmp.Diff(map[string]uint64{"2MB": 4 << 20, "1GB": 0}, pages); diff != "" {
		t.Errorf("huge pages (-want +got):\n%s", diff)
	}
	if got := full.resources(podValues{}).HugetlbLimit; got != nil {
		t.Errorf("huge pages of a QoS parent are limited: %v", got)
	}

	full.version = 2
	if r := full.resources(v); r.CpuShares != 0 || r.CpuWeight != 39 {
		t.Errorf("version 2: shares %d, weight %d", r.CpuShares, r.CpuWeight)
	}
	bare := host{version: 1}
	if r := bare.resources(v); r.CpuShares != 0 || r.CpuQuota != 0 || r.Memory != 0 || r.PidsLimit != nil || r.HugetlbLimit != nil {
		t.Errorf("limits for controllers that are missing: %+v", r)
	}
	if diff := cmp.Diff([]string{"cpu", "hugetlb", "memory", "pids"}, bare.missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestPodMemoryLimit(t *testing.T) {
	const Mi = 1 << 20
	tests := map[string]struct {
		spec v1.PodSpec
		want int64
	}{
		"none":         {v1.PodSpec{Containers: []v1.Container{needs(list("memory", "1Mi"), nil)}}, 0},
		"one of two":   {v1.PodSpec{Containers: []v1.Container{needs(nil, list("memory", "3Mi")), {}}}, 0},
		"zero is none": {v1.PodSpec{Containers: []v1.Container{needs(nil, list("memory", "3Mi")), needs(nil, list("memory", "0"))}}, 0},
		"sidecars are added": {v1.PodSpec{
			InitContainers: []v1.Container{sidecar(needs(nil, list("memory", "2Mi")))},
			Containers:     []v1.Container{needs(nil, list("memory", "3Mi"))},
		}, 5 * Mi},
		"sidecar without": {v1.PodSpec{
			InitContainers: []v1.Container{sidecar(v1.Container{})},
			Containers:     []v1.Container{needs(nil, list("memory", "3Mi"))},
		}, 0},
		"init container without": {v1.PodSpec{
			InitContainers: []v1.Container{{}},
			Containers:     []v1.Container{needs(nil, list("memory", "3Mi"))},
		}, 0},
		"overhead is not counted": {v1.PodSpec{
			Overhead:   list("memory", "1Mi"),
			Containers: []v1.Container{needs(nil, list("memory", "3Mi"))},
		}, 3 * Mi},
		"pod level, no container": {v1.PodSpec{
			Resources:  &v1.ResourceRequirements{Limits: list("memory", "5Mi")},
			Containers: []v1.Container{{}, needs(nil, list("memory", "3Mi"))},
		}, 5 * Mi},
		"only CPU at pod level": {v1.PodSpec{
			Resources:  &v1.ResourceRequirements{Limits: list("cpu", "1")},
			Containers: []v1.Container{{}, needs(nil, list("memory", "3Mi"))},
		}, 0},
		"the larger of init and regular": {v1.PodSpec{
			InitContainers: []v1.Container{needs(nil, list("memory", "9Mi"))},
			Containers:     []v1.Container{needs(nil, list("memory", "3Mi")), needs(nil, list("memory", "4Mi"))},
		}, 9 * Mi},
		"pod level": {v1.PodSpec{
			Resources:  &v1.ResourceRequirements{Limits: list("memory", "5Mi")},
			Containers: []v1.Container{needs(nil, list("memory", "3Mi"))},
		}, 5 * Mi},
	}
	for name, tt := range tests {
		if got := PodMemoryLimit(&v1.Pod{Spec: tt.spec}); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestHugetlbBytes(t *testing.T) {
	for in, want := range map[string]int64{"64KB": 64 << 10, "2MB": 2 << 20, "1GB": 1 << 30, "16GB": 16 << 30} {
		if got, ok := hugetlbBytes(in); !ok || got != want {
			t.Errorf("hugetlbBytes(%q) = %d, %v; want %d", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "MB", "2", "2TB", "x2MB"} {
		if got, ok := hugetlbBytes(in); ok {
			t.Errorf("hugetlbBytes(%q) = %d, want a refusal", in, got)
		}
	}
}
