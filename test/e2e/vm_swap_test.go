//go:build e2e && vm

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// swapConfig has pods swap.
const swapConfig = "memorySwap: {swapBehavior: LimitedSwap}\n"

// What containers may swap, seen from inside: static pods are critical, and critical pods do not
// swap on a machine that has swap and lets others (KEP-2400).
func TestVMSwap(t *testing.T) {
	needsUnified(t)
	if swaps := strings.Count(readFile(t, "/proc/swaps"), "\n"); swaps == 0 {
		t.Fatal("this host has no swap: run this test by make e2e-vm")
	}
	const request = 96 << 20
	n := newNode(t)
	bytes := func(n int64) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(n, resource.BinarySI)}
	}
	var names []string
	for name, r := range map[string]v1.ResourceRequirements{
		"burstable":  {Requests: bytes(request), Limits: bytes(2 * request)},
		"level":      {Requests: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(request, resource.BinarySI), v1.ResourceCPU: resource.MustParse("10m")}, Limits: bytes(request)},
		"guaranteed": {Limits: amounts("100m", "96Mi")},
		"effort":     {},
	} {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "cat /sys/fs/cgroup/memory.swap.max > /shared/swap; say looked\nstay\n"))
		p.Spec.Containers[0].Resources = r
		n.put(p)
		names = append(names, name+"-n1")
	}
	n.startConfigured(swapConfig)
	n.awaitReady(names...)
	for _, name := range names {
		name = strings.TrimSuffix(name, "-n1")
		n.awaitStory(name, "main looked")
		wantFile(t, filepath.Join(n.stage(name), "swap"), "0")
	}
}
