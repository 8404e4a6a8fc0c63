package crispec

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/cgroups"
)

// amounts returns a resource list from names and quantities in turn.
func amounts(kv ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[v1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func needing(requests, limits v1.ResourceList, mods ...func(*v1.Pod)) *v1.Pod {
	p := newPod(mods...)
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: requests, Limits: limits}
	return p
}

func atPodLevel(requests, limits v1.ResourceList) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{Requests: requests, Limits: limits} }
}

func TestContainerResources(t *testing.T) {
	const mi, gi = 1 << 20, 1 << 30
	v1Swap := ResourceSettings{CgroupVersion: 1, SwapAccounted: true}
	noSwap := ResourceSettings{CgroupVersion: 2, SwapAccounted: true, NodeMemory: 8 * gi, NodeSwap: 4 * gi}
	limitedSwap := noSwap
	limitedSwap.LimitedSwap = true
	qos := ResourceSettings{CgroupVersion: 2, MemoryQoS: &cgroups.MemoryQoS{ThrottlingFactor: 0.9, Allocatable: 8 * gi}}
	tiered := ResourceSettings{CgroupVersion: 2, MemoryQoS: &cgroups.MemoryQoS{ThrottlingFactor: 0.9, Reserve: true, Allocatable: 8 * gi}}
	critical := func(p *v1.Pod) { p.Spec.Priority = ptr.To[int32](2_000_000_000) }
	unified := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	tests := map[string]struct {
		pod      *v1.Pod
		settings ResourceSettings
		want     *runtimeapi.LinuxContainerResources
	}{
		"limits at pod level, where there is none": {
			pod:  needing(nil, nil, atPodLevel(amounts("cpu", "1", "memory", "64Mi"), amounts("cpu", "2", "memory", "128Mi"))),
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2048, CpuQuota: 200_000, CpuPeriod: 100_000, MemoryLimitInBytes: 128 * mi},
		},
		"own limits hold over those at pod level": {
			pod:  needing(amounts("cpu", "250m"), amounts("cpu", "500m"), atPodLevel(nil, amounts("cpu", "2", "memory", "128Mi"))),
			want: &runtimeapi.LinuxContainerResources{CpuShares: 256, CpuQuota: 50_000, CpuPeriod: 100_000, MemoryLimitInBytes: 128 * mi},
		},
		"requests at pod level are no container's": {
			pod:  needing(nil, nil, atPodLevel(amounts("cpu", "1", "memory", "64Mi"), nil)),
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2},
		},
		"no quota": {
			pod: needing(nil, amounts("cpu", "500m")), settings: ResourceSettings{CPUQuota: cgroups.CPUQuota{Off: true}},
			want: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		},
		"another period": {
			pod: needing(nil, amounts("cpu", "500m")), settings: ResourceSettings{CPUQuota: cgroups.CPUQuota{Period: 10 * time.Millisecond}},
			want: &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuQuota: 5000, CpuPeriod: 10_000},
		},
		"no swap on v1": {
			pod: needing(nil, amounts("memory", "64Mi")), settings: v1Swap,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 64 * mi, MemorySwapLimitInBytes: 64 * mi},
		},
		"no swap on v2": {
			pod: needing(amounts("memory", "1Gi"), nil), settings: noSwap,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: unified("memory.swap.max", "0")},
		},
		"limited swap: a quarter of the memory, a quarter of the swap": {
			pod: needing(amounts("memory", "2Gi"), nil), settings: limitedSwap,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: unified("memory.swap.max", "1073741824")},
		},
		"limited swap: none for a container whose request is its limit": {
			pod: needing(amounts("memory", "2Gi"), amounts("memory", "2Gi")), settings: limitedSwap,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 2 * gi, Unified: unified("memory.swap.max", "0")},
		},
		"limited swap: none for best effort": {
			pod: newPod(), settings: limitedSwap,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: unified("memory.swap.max", "0")},
		},
		"limited swap: none for guaranteed": {
			pod: needing(amounts("memory", "2Gi", "cpu", "1"), amounts("memory", "2Gi", "cpu", "1")), settings: limitedSwap,
			want: &runtimeapi.LinuxContainerResources{
				CpuShares: 1024, CpuQuota: 100_000, CpuPeriod: 100_000, MemoryLimitInBytes: 2 * gi, Unified: unified("memory.swap.max", "0"),
			},
		},
		"limited swap: none for a critical pod": {
			pod: needing(amounts("memory", "2Gi"), nil, critical), settings: limitedSwap,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: unified("memory.swap.max", "0")},
		},
		"huge pages: what is not asked for is not to be used": {
			pod: needing(nil, amounts("hugepages-2Mi", "4Mi")), settings: ResourceSettings{HugePageSizes: []int64{64 << 10, 2 * mi, gi}},
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, HugepageLimits: []*runtimeapi.HugepageLimit{
				{PageSize: "64KB"}, {PageSize: "2MB", Limit: 4 * mi}, {PageSize: "1GB"},
			}},
		},
		"killed together": {
			pod: newPod(), settings: ResourceSettings{CgroupVersion: 2, KillTogether: true},
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: unified("memory.oom.group", "1")},
		},
		"not together on v1": {
			pod: newPod(), settings: ResourceSettings{CgroupVersion: 1, KillTogether: true},
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2},
		},
		"memory QoS: throttled at nine tenths of the way": {
			pod: needing(amounts("memory", "100Mi"), amounts("memory", "200Mi")), settings: qos,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 200 * mi, Unified: unified("memory.high", "199229440")},
		},
		"memory QoS: without a limit, of the allocatable memory": {
			pod: newPod(), settings: qos,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: unified("memory.high", "7730937856")},
		},
		"memory QoS: burstable is protected last": {
			pod: needing(amounts("memory", "100Mi"), amounts("memory", "200Mi")), settings: tiered,
			want: &runtimeapi.LinuxContainerResources{
				CpuShares: 2, MemoryLimitInBytes: 200 * mi, Unified: unified("memory.high", "199229440", "memory.low", "104857600", "memory.min", "0"),
			},
		},
		"memory QoS: guaranteed is protected always, and not throttled": {
			pod: needing(amounts("memory", "512Mi", "cpu", "1"), amounts("memory", "512Mi", "cpu", "1")), settings: tiered,
			want: &runtimeapi.LinuxContainerResources{
				CpuShares: 1024, CpuQuota: 100_000, CpuPeriod: 100_000, MemoryLimitInBytes: 512 * mi, Unified: unified("memory.low", "0", "memory.min", "536870912"),
			},
		},
		"memory QoS: not throttled where the request is the limit": {
			pod: needing(amounts("memory", "200Mi"), amounts("memory", "200Mi")), settings: qos,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 200 * mi, Unified: unified("memory.high", "max")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ContainerResources(tt.pod, &tt.pod.Spec.Containers[0], tt.settings)
			if got.String() != tt.want.String() {
				t.Errorf("got  %v\nwant %v", got, tt.want)
			}
		})
	}
}

// What a pod asks for beyond its containers counts for each of them.
func TestOOMScoreAtPodLevel(t *testing.T) {
	const gi = 1 << 30
	p := needing(amounts("memory", "1Gi"), nil, atPodLevel(amounts("memory", "4Gi"), nil))
	p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "other"})
	p.Spec.InitContainers = []v1.Container{{Name: "first", Resources: v1.ResourceRequirements{Requests: amounts("memory", "2Gi")}}}
	var got []int64
	for i := range p.Spec.Containers {
		got = append(got, computeOOMScore(p, &p.Spec.Containers[i], 10*gi))
	}
	if diff := cmp.Diff([]int64{1000 - 250, 1000 - 150}, got); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}
