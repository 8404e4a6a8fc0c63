package eviction

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
)

// spell writes a threshold out.
func spell(t *Threshold) string {
	out := t.String()
	if !t.isHard() {
		out += " for " + t.Grace.String()
	}
	if t.MinReclaim != (Amount{}) {
		out += " reclaim " + t.MinReclaim.String()
	}
	return out
}

func TestParseThresholds(t *testing.T) {
	type amounts = map[string]string
	for _, tt := range []struct {
		name string
		k    config.KubeletConfiguration
		want []string
	}{
		{name: "none"},
		{
			name: "in the order in which they are relieved",
			k: config.KubeletConfiguration{EvictionHard: amounts{
				"imagefs.available": "15%", "nodefs.inodesFree": "5%", "nodefs.available": "10%", "memory.available": "100Mi", "pid.available": "1k",
				"imagefs.inodesFree": "5%", "containerfs.available": "1Gi", "containerfs.inodesFree": "7", "allocatableMemory.available": "50Mi",
			}},
			want: []string{
				"memory.available<100Mi", "allocatableMemory.available<50Mi", "pid.available<1k", "nodefs.available<10%", "nodefs.inodesFree<5%",
				"imagefs.available<15%", "imagefs.inodesFree<5%", "containerfs.available<1Gi", "containerfs.inodesFree<7",
			},
		},
		{
			name: "0% and 100% turn a threshold off",
			k: config.KubeletConfiguration{
				EvictionHard: amounts{"memory.available": "0%", "pid.available": "100%", "nodefs.available": "0.5%", "imagefs.available": "99.9%"},
				EvictionSoft: amounts{"memory.available": "100%"}, EnforceNodeAllocatable: []string{"pods"},
			},
			want: []string{"nodefs.available<0.5%", "imagefs.available<99.9%"},
		},
		{
			name: "soft ones come after hard ones, with the grace and the reclaim of their signal",
			k: config.KubeletConfiguration{
				EvictionHard: amounts{"memory.available": "1Gi", "pid.available": "5"}, EvictionSoft: amounts{"memory.available": "2Gi", "pid.available": "12.5%"},
				EvictionSoftGracePeriod: amounts{"memory.available": "1m30s", "pid.available": "0s"},
				EvictionMinimumReclaim:  amounts{"memory.available": "500Mi", "nodefs.available": "3%"},
			},
			want: []string{
				"memory.available<1Gi reclaim 500Mi", "memory.available<2Gi for 1m30s reclaim 500Mi", "pid.available<5", "pid.available<12.5%",
			},
		},
		{
			name: "the pods' limit is a threshold like the machine's hard one",
			k: config.KubeletConfiguration{
				EvictionHard: amounts{"memory.available": "1Gi"}, EvictionSoft: amounts{"memory.available": "2Gi"},
				EvictionSoftGracePeriod: amounts{"memory.available": "1m"}, EvictionMinimumReclaim: amounts{"memory.available": "10%"},
				EnforceNodeAllocatable: []string{"system-reserved", "pods"},
			},
			want: []string{
				"memory.available<1Gi reclaim 10%", "memory.available<2Gi for 1m0s reclaim 10%", "allocatableMemory.available<1Gi reclaim 10%",
			},
		},
		{
			name: "nothing is enforced",
			k:    config.KubeletConfiguration{EvictionHard: amounts{"memory.available": "1Gi"}, EnforceNodeAllocatable: []string{"none"}},
			want: []string{"memory.available<1Gi"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ts, err := ParseThresholds(&tt.k)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range ts {
				got = append(got, spell(&ts[i]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseThresholdsFails(t *testing.T) {
	type amounts = map[string]string
	for _, tt := range []struct {
		k    config.KubeletConfiguration
		want string
	}{
		{config.KubeletConfiguration{EvictionHard: amounts{"memory.free": "1Gi"}}, `evictionHard[memory.free]: there is no such signal`},
		{config.KubeletConfiguration{EvictionSoft: amounts{"emptydirfs.limit": "1Gi"}}, `evictionSoft[emptydirfs.limit]: there is no such signal`},
		{config.KubeletConfiguration{EvictionHard: amounts{"memory.available": "much"}}, `evictionHard[memory.available]: "much" is no quantity, such as "1Gi": `},
		{config.KubeletConfiguration{EvictionHard: amounts{"memory.available": "101%"}}, `evictionHard[memory.available]: "101%" is no percentage from "0%" to "100%"`},
		{config.KubeletConfiguration{EvictionHard: amounts{"memory.available": "-1%"}}, `evictionHard[memory.available]: "-1%" is no percentage from "0%" to "100%"`},
		{config.KubeletConfiguration{EvictionHard: amounts{"memory.available": "NaN%"}}, `evictionHard[memory.available]: "NaN%" is no percentage from "0%" to "100%"`},
		{config.KubeletConfiguration{EvictionHard: amounts{"memory.available": "%"}}, `evictionHard[memory.available]: "%" is no percentage from "0%" to "100%"`},
		{
			config.KubeletConfiguration{EvictionSoft: amounts{"pid.available": "5"}, EvictionSoftGracePeriod: amounts{"pid.available": "soon"}},
			`evictionSoftGracePeriod[pid.available]: time: invalid duration "soon"`,
		},
		{
			config.KubeletConfiguration{EvictionHard: amounts{"pid.available": "5"}, EvictionMinimumReclaim: amounts{"pid.available": "x"}},
			`evictionMinimumReclaim[pid.available]: "x" is no quantity, such as "1Gi": `,
		},
	} {
		ts, err := ParseThresholds(&tt.k)
		if err == nil || ts != nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("got %v, %v; want %s", ts, err, tt.want)
		}
	}
}

func TestAmount(t *testing.T) {
	for _, tt := range []struct {
		amount   string
		capacity uint64
		want     uint64
	}{
		{"1Ki", 5, 1024},
		{"1500m", 5, 2}, // what is asked for is rounded up
		{"0", 5, 0},
		{"50%", 101, 50}, // a part is rounded down
		{"0%", 1 << 40, 0},
		{"100%", 1 << 40, 1 << 40},
		{"10%", 100 << 30, 10737418400}, // as the kubelet: the part is a number of 32 bits
		{"10%", 0, 0},
		{"9223372036854775807", 1, 1<<63 - 1},
		{"9999999999999999999999", 1, 1<<63 - 1},
		{"100%", 1<<64 - 1, 1<<63 - 1024},
	} {
		a, err := parseAmount(tt.amount)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.of(tt.capacity); got != tt.want {
			t.Errorf("%s of %d: %d, want %d", tt.amount, tt.capacity, got, tt.want)
		}
	}
}
