package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func cpuOf(nanoCores uint64) *summary.CPUStats { return &summary.CPUStats{UsageNanoCores: &nanoCores} }

func memoryOf(workingSet, available uint64) *summary.MemoryStats {
	return &summary.MemoryStats{WorkingSetBytes: &workingSet, AvailableBytes: &available}
}

func topSummary() *summary.Summary {
	return &summary.Summary{
		Node: summary.NodeStats{NodeName: "n1", CPU: cpuOf(500_000_001), Memory: memoryOf(1<<30, 3<<30)},
		Pods: []summary.PodStats{
			{PodRef: summary.PodReference{Namespace: "default", Name: "web"}, CPU: cpuOf(12_000_000), Memory: memoryOf(20<<20, 0), Containers: []summary.ContainerStats{
				{Name: "a", CPU: cpuOf(10_000_000), Memory: memoryOf(15<<20, 0)},
				{Name: "b", Memory: memoryOf(5<<20, 0)},
			}},
			{PodRef: summary.PodReference{Namespace: "default", Name: "api"}, CPU: cpuOf(1), Memory: memoryOf(99<<20, 0)},
		},
	}
}

func TestTop(t *testing.T) {
	tests := []struct {
		name string
		rows [][]string
		want []string
	}{
		{"node", nodeRows(topSummary(), 2), []string{
			"NAME   CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)",
			"n1     501m         25%      1024Mi          25%",
		}},
		{"pods by name", podRows(podUse(topSummary(), topFlags{}), topFlags{}), []string{
			"NAME   CPU(cores)   MEMORY(bytes)",
			"api    1m           99Mi",
			"web    12m          20Mi",
		}},
		{"pods by CPU, without headers", podRows(podUse(topSummary(), topFlags{}), topFlags{sortBy: "cpu", noHeaders: true}), []string{
			"web   12m   20Mi",
			"api   1m    99Mi",
		}},
		{"containers, with namespaces and the sum", podRows(podUse(topSummary(), topFlags{containers: true}), topFlags{containers: true, allNamespaces: true, sum: true}), []string{
			"NAMESPACE   POD   NAME   CPU(cores)   MEMORY(bytes)",
			"default     web   a      10m          15Mi",
			"default     web   b      <unknown>    5Mi",
			"                         ________     ________",
			"                         10m          20Mi",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := printTop(&b, tt.rows); err != nil {
				t.Fatal(err)
			}
			got := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
