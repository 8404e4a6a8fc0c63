//go:build e2e && vm

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
)

// unified is the directory of a running container's cgroup, of version 2.
func (n *node) unified(s v1.ContainerStatus) string {
	n.t.Helper()
	_, id, _ := strings.Cut(s.ContainerID, "://")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", n.pid(id)))
	must(n.t, err)
	_, path, _ := bytes.Cut(bytes.TrimSpace(b), []byte("::"))
	return filepath.Join(cgroupMount, string(path))
}

// awaitFile waits until the file has the content.
func awaitFile(t *testing.T, name, want string) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s: %q", name, got)
		}
	}()
	until(t, fmt.Sprintf("%s to be %q", name, want), func() bool {
		got = readFile(t, name)
		return got == want
	})
}

// memoryQoSConfig protects and throttles memory.
const memoryQoSConfig = `featureGates: {MemoryQoS: true}
memoryReservationPolicy: TieredReservation
`

// Under memory QoS, what pods ask for is protected in their cgroups and in all above them, and
// containers are slowed down before they reach their limits (KEP-2570).
func TestVMMemoryQoS(t *testing.T) {
	needsUnified(t)
	n := newNode(t)
	for name, r := range map[string]v1.ResourceRequirements{
		"guaranteed": resourcesOf("", "1 48Mi"), "burstable": resourcesOf("50m 32Mi", "1 128Mi"), "effort": {},
	} {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "stay\n"))
		p.Spec.Containers[0].Resources = r
		n.put(p)
	}
	n.startConfigured(memoryQoSConfig)
	dirs := map[string]string{}
	for _, p := range n.awaitReady("guaranteed-n1", "burstable-n1", "effort-n1") {
		dirs[p.Name] = n.unified(container(p, "main"))
	}
	const mi = 1 << 20
	guaranteed, burstable, effort := dirs["guaranteed-n1"], dirs["burstable-n1"], dirs["effort-n1"]
	kubepods := filepath.Dir(filepath.Dir(guaranteed))
	for dir, want := range map[string][2]int64{ // memory.min, memory.low
		guaranteed: {48 * mi, 0}, filepath.Dir(guaranteed): {48 * mi, 0},
		burstable: {0, 32 * mi}, filepath.Dir(burstable): {0, 32 * mi}, filepath.Dir(filepath.Dir(burstable)): {0, 32 * mi},
		effort: {0, 0}, filepath.Dir(effort): {0, 0}, filepath.Dir(filepath.Dir(effort)): {0, 0},
		kubepods: {48 * mi, 32 * mi},
	} {
		awaitFile(t, dir+"/memory.min", strconv.FormatInt(want[0], 10))
		awaitFile(t, dir+"/memory.low", strconv.FormatInt(want[1], 10))
	}
	wantFile(t, guaranteed+"/memory.high", "max")
	wantFile(t, burstable+"/memory.high", strconv.FormatInt(cgroups.MemoryHigh(32*mi, 128*mi, 0.9, int64(os.Getpagesize())), 10))
	if high := readFile(t, effort+"/memory.high"); high == "max" {
		t.Error("a container without a limit is not slowed down before the machine's memory is used up")
	}
}

// Under memory QoS, what pods ask for is protected in their cgroups and in all above them, and
// containers are slowed down before they reach their limits; a resize of what is asked for alone
// changes all of that without a restart (KEP-2570).
func TestVMMemoryQoSResize(t *testing.T) {
	needsUnified(t)
	const mi = 1 << 20
	c := newCluster(t)
	c.configure("featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation\n")
	c.startMember()
	for name, r := range map[string]v1.ResourceRequirements{
		"guaranteed": resourcesOf("", "1 48Mi"), "burstable": resourcesOf("50m 32Mi", "1 128Mi"), "effort": {},
	} {
		p := c.inCluster(c.act(name, v1.RestartPolicyAlways, nil, actor("main", "stay")))
		p.Spec.Containers[0].Resources = r
		c.create(p)
	}
	now := c.awaitAPIReady("guaranteed", "burstable", "effort")
	dirs := map[string]string{}
	for _, p := range now {
		dirs[p.Name] = c.unified(container(p, "main"))
	}
	memory := func(dir, file string, want int64) {
		t.Helper()
		awaitFile(t, filepath.Join(dir, file), strconv.FormatInt(want, 10))
	}
	high := func(dir string, request, limit int64) {
		t.Helper()
		memory(dir, "memory.high", cgroups.MemoryHigh(request, limit, 0.9, int64(os.Getpagesize())))
	}
	n, err := c.client.GetNode(c.ctx, c.name)
	must(t, err)
	allocatable := n.Status.Allocatable[v1.ResourceMemory]

	guaranteed, burstable, effort := dirs["guaranteed"], dirs["burstable"], dirs["effort"]
	kubepods := filepath.Dir(filepath.Dir(guaranteed))
	for _, dir := range []string{guaranteed, filepath.Dir(guaranteed), kubepods} {
		memory(dir, "memory.min", 48*mi)
	}
	wantFile(t, guaranteed+"/memory.high", "max")
	for _, dir := range []string{effort, filepath.Dir(effort)} {
		memory(dir, "memory.min", 0)
		memory(dir, "memory.low", 0)
	}
	high(effort, 0, allocatable.Value())
	asks := func(request, limit int64) {
		t.Helper()
		for _, dir := range []string{burstable, filepath.Dir(burstable), filepath.Dir(filepath.Dir(burstable)), kubepods} {
			memory(dir, "memory.low", request)
		}
		if request < limit {
			high(burstable, request, limit)
		} else {
			awaitFile(t, burstable+"/memory.high", "max")
		}
		memory(burstable, "memory.max", limit)
	}
	asks(32*mi, 128*mi)

	before := container(now.named("burstable"), "main")
	for _, to := range []struct{ request, limit int64 }{{64 * mi, 128 * mi}, {16 * mi, 128 * mi}, {128 * mi, 128 * mi}, {24 * mi, 96 * mi}} {
		c.kubectl("patch", "pod", "burstable", "--subresource=resize", "-p", fmt.Sprintf(
			`{"spec":{"containers":[{"name":"main","resources":{"requests":{"memory":"%d"},"limits":{"memory":"%d"}}}]}}`, to.request, to.limit))
		asks(to.request, to.limit)
		after := c.awaitAPI("the resize to be done", func(p pods) bool {
			w := p.named("burstable")
			r := container(w, "main").Resources
			return r != nil && r.Requests.Memory().Value() == to.request && podCondition(w, v1.PodResizeInProgress).Status == ""
		}).named("burstable")
		wantRestarts(t, container(after, "main"), before.ContainerID, 0)
	}
	memory(kubepods, "memory.min", 48*mi)
}

// A container of a burstable pod swaps its part of the machine's swap, and no more; one that asks
// for all that it may use does not swap, and none is resized while it may swap (KEP-2400).
func TestVMSwapping(t *testing.T) {
	needsUnified(t)
	c := newCluster(t)
	c.configure("memorySwap: {swapBehavior: LimitedSwap}\n")
	c.startMember()
	const request, limit, use = 150 << 20, 160 << 20, "190M"
	script := `dd if=/dev/zero of=/dev/null bs=` + use + ` count=1 2>/shared/said && say "used $(cat /sys/fs/cgroup/memory.swap.peak)"
stay
`
	for name, asked := range map[string]int64{"swaps": request, "does-not": limit} {
		p := c.inCluster(c.act(name, v1.RestartPolicyNever, nil, actor("main", script)))
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(asked, resource.BinarySI), v1.ResourceCPU: resource.MustParse("10m")},
			Limits:   v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(limit, resource.BinarySI)},
		}
		c.create(p)
	}
	swaps := c.awaitAPIReady("swaps").named("swaps")
	c.awaitStory("swaps", "main began")
	dir := c.unified(container(swaps, "main"))
	machine := func(field string) int64 {
		t.Helper()
		for line := range strings.Lines(readFile(t, "/proc/meminfo")) {
			if f := strings.Fields(line); f[0] == field+":" {
				kib, err := strconv.ParseInt(f[1], 10, 64)
				must(t, err)
				return kib << 10
			}
		}
		t.Fatalf("/proc/meminfo has no %s", field)
		return 0
	}
	page := int64(os.Getpagesize())
	wantFile(t, dir+"/memory.swap.max", strconv.FormatInt(cgroups.SwapLimit(request, machine("MemTotal"), machine("SwapTotal"))/page*page, 10))
	peak := int64(0)
	for _, line := range c.story("swaps") {
		if said, ok := strings.CutPrefix(line, "main used "); ok {
			var err error
			peak, err = strconv.ParseInt(said, 10, 64)
			must(t, err)
		}
	}
	if peak == 0 { // it is less than is beyond the limit: the kernel gives memory back that is all zeroes
		t.Errorf("with %s in a limit of 160 MiB, the container has swapped nothing:\n%s", use, readFile(t, filepath.Join(c.stage("swaps"), "said")))
	}
	failed := c.awaitAPI("the pod that does not swap to fail", func(p pods) bool { return p.inPhase("does-not", v1.PodFailed) }).named("does-not")
	wantTerminated(t, failed, "main", 137, "OOMKilled")

	c.kubectl("patch", "pod", "swaps", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"memory":"100Mi"}}}]}}`)
	refused := c.awaitAPI("the resize to be refused", func(p pods) bool {
		return podCondition(p.named("swaps"), v1.PodResizePending).Reason == v1.PodReasonInfeasible
	}).named("swaps")
	wantText(t, "the condition", podCondition(refused, v1.PodResizePending).Message, "In-place resize of containers with swap is not supported.")
	wantRestarts(t, container(refused, "main"), container(swaps, "main").ContainerID, 0)
}
