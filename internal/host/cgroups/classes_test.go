package cgroups

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

func TestComputeClassValues(t *testing.T) {
	pods := map[pod.UID]ensured{
		"g1": {class: v1.PodQOSGuaranteed, milliCPU: 1000, memory: 512}, "g2": {class: v1.PodQOSGuaranteed, milliCPU: 500, memory: 256},
		"b1": {class: v1.PodQOSBurstable, milliCPU: 250, memory: 64}, "b2": {class: v1.PodQOSBurstable, milliCPU: 500, memory: 32, found: true},
		"b3": {class: v1.PodQOSBurstable}, "e": {class: v1.PodQOSBestEffort},
	}
	tests := map[string]struct {
		pods map[pod.UID]ensured
		qos  *MemoryQoS
		want classValues
	}{
		"no pods":               {nil, nil, classValues{shares: 2}},
		"burstable pods add up": {pods, nil, classValues{shares: 768}},
		"nothing reserved":      {pods, &MemoryQoS{ThrottlingFactor: 0.9}, classValues{shares: 768}},
		"reserved by class": {pods, &MemoryQoS{ThrottlingFactor: 0.9, Reserve: true}, classValues{
			shares: 768, guaranteed: protection{min: 768, low: 96}, burstable: protection{low: 96},
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := computeClassValues(tt.pods, tt.qos); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// What is read back from a cgroup gives it the same value again.
func TestSharesReadBack(t *testing.T) {
	for milli := int64(0); milli <= 300_000; milli += 7 {
		shares := SharesFromMilliCPU(milli)
		if got := SharesFromMilliCPU(milliCPUFromShares(shares)); got != shares {
			t.Fatalf("shares of %dm: %d, read back: %d", milli, shares, got)
		}
		weight := WeightFromShares(shares)
		if got := WeightFromShares(sharesFromWeight(weight)); got != weight {
			t.Fatalf("weight of %dm: %d, read back: %d", milli, weight, got)
		}
	}
}

// A weight stands for many requests: what is read back from pods adds up to what they asked for as
// far as their weights tell.
func TestWeightsReadBackAddUp(t *testing.T) {
	tests := map[string]struct {
		requests     []int64
		exact, after uint64 // the parent's weight
	}{
		"nothing asked for": {[]int64{0, 0, 0}, 1, 1},
		"one":               {[]int64{250}, 10, 10},
		"two":               {[]int64{1000, 500}, 59, 59},
		"many small":        {slices.Repeat([]int64{100}, 100), 391, 360},
		"many":              {slices.Repeat([]int64{1000, 750, 330, 120}, 25), 2149, 2137},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var exact, after int64
			for _, milli := range tt.requests {
				exact += milli
				after += milliCPUFromShares(sharesFromWeight(WeightFromShares(SharesFromMilliCPU(milli))))
			}
			got := [2]uint64{WeightFromShares(SharesFromMilliCPU(exact)), WeightFromShares(SharesFromMilliCPU(after))}
			if want := [2]uint64{tt.exact, tt.after}; got != want {
				t.Errorf("the parent's weight and the one read back: %d, want %d", got, want)
			}
		})
	}
}

func TestCPUQuota(t *testing.T) {
	tests := map[string]struct {
		quota  CPUQuota
		milli  int64
		us, of int64
	}{
		"half a CPU":                {CPUQuota{}, 500, 50_000, 100_000},
		"no limit":                  {CPUQuota{}, 0, 0, 0},
		"off":                       {CPUQuota{Off: true}, 500, 0, 0},
		"the kernel's least":        {CPUQuota{}, 1, 1000, 100_000},
		"a short period":            {CPUQuota{Period: 5 * time.Millisecond}, 2500, 12_500, 5000},
		"the least of short ones":   {CPUQuota{Period: time.Millisecond}, 100, 1000, 1000},
		"rounded down to whole µs":  {CPUQuota{Period: 3333 * time.Microsecond}, 500, 1666, 3333},
		"a second, and all 64 CPUs": {CPUQuota{Period: time.Second}, 64_000, 64_000_000, 1_000_000},
	}
	for name, tt := range tests {
		if us, of := tt.quota.Of(tt.milli); us != tt.us || of != tt.of {
			t.Errorf("%s: %d per %d, want %d per %d", name, us, of, tt.us, tt.of)
		}
	}
}

// KEP-2570 has the formula; its pages are 4096 bytes.
func TestMemoryHigh(t *testing.T) {
	const mi = 1 << 20
	tests := map[string]struct {
		request, limit int64
		factor         float64
		want           int64
	}{
		"nine tenths of the way":      {100 * mi, 200 * mi, 0.9, 190 * mi},
		"half the way":                {0, 1000 * mi, 0.5, 500 * mi},
		"whole pages":                 {0, 4096*10 + 1, 1, 4096 * 10},
		"request is the limit":        {100 * mi, 100 * mi, 0.9, 0},
		"request beyond the limit":    {200 * mi, 100 * mi, 0.9, 0},
		"less than a page in between": {4096, 4097, 0.9, 0},
	}
	for name, tt := range tests {
		if got := MemoryHigh(tt.request, tt.limit, tt.factor, 4096); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// KEP-2400 has the formula: the container's part of the node's memory is its part of the node's
// swap.
func TestSwapLimit(t *testing.T) {
	const gi = 1 << 30
	for _, tt := range []struct{ request, memory, swap, want int64 }{
		{20 * gi, 64 * gi, 40 * gi, 12*gi + gi/2}, {gi, 8 * gi, 4 * gi, gi / 2}, {0, 8 * gi, 4 * gi, 0}, {gi, 8 * gi, 0, 0}, {gi, 0, gi, 0},
	} {
		if got := SwapLimit(tt.request, tt.memory, tt.swap); got != tt.want {
			t.Errorf("SwapLimit(%d, %d, %d) = %d, want %d", tt.request, tt.memory, tt.swap, got, tt.want)
		}
	}
}

func TestPodProtection(t *testing.T) {
	const mi = 1 << 20
	pod := func(requests, limits v1.ResourceList) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{needs(requests, limits)}}}
	}
	s := Settings{MemoryQoS: &MemoryQoS{Reserve: true}}
	both := list("cpu", "1", "memory", "512Mi")
	for name, tt := range map[string]struct {
		pod  *v1.Pod
		want protection
	}{
		"guaranteed":  {pod(both, both), protection{min: 512 * mi}},
		"burstable":   {pod(list("memory", "512Mi"), nil), protection{low: 512 * mi}},
		"best effort": {pod(nil, nil), protection{}},
	} {
		v := computePodValues(tt.pod, s)
		if diff := cmp.Diff(&tt.want, v.protection, cmp.AllowUnexported(protection{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		h := host{version: 2, has: map[string]bool{"memory": true}}
		if got := h.resources(v).Unified["memory.min"]; name == "guaranteed" && got != "536870912" {
			t.Errorf("%s: memory.min %q", name, got)
		}
		if v := computePodValues(tt.pod, Settings{}); v.protection != nil {
			t.Errorf("%s without memory QoS: %+v", name, v.protection)
		}
	}
}
