package crispec

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// ResourceSettings are the node properties and configuration that container resources depend on.
type ResourceSettings struct {
	// NodeMemory and NodeSwap are the node's capacity in bytes.
	NodeMemory, NodeSwap int64
	// CPUQuota configures the enforcement of CPU limits.
	CPUQuota cgroups.CPUQuota
	// CgroupVersion is 1 or 2.
	CgroupVersion int
	// SwapAccounted: the kernel can limit the swap of a cgroup; without it swap limits are not set.
	SwapAccounted bool
	// LimitedSwap allows containers of Burstable pods their share of the node's swap
	// (memorySwap.swapBehavior, KEP-2400); without it no container swaps.
	LimitedSwap bool
	// HugePageSizes are the page sizes in bytes that the kernel can limit for a cgroup.
	HugePageSizes []int64
	// KillTogether makes the kernel OOM-kill all processes of a container together (the opposite of
	// singleProcessOOMKill). It needs cgroup v2.
	KillTogether bool
	// MemoryQoS throttles and protects memory on cgroup v2 (KEP-2570); nil does neither.
	MemoryQoS *cgroups.MemoryQoS
}

func resources(in Container) *runtimeapi.LinuxContainerResources {
	out := ContainerResources(in.Pod, in.Container, in.Node.Resources)
	out.OomScoreAdj = computeOOMScore(in.Pod, in.Container, in.Node.Resources.NodeMemory)
	return out
}

// ContainerResources returns the resources of a container that can be changed while it is running:
// all except its OOM score. A limit that the container does not set is the pod's (KEP-2837).
func ContainerResources(p *v1.Pod, c *v1.Container, s ResourceSettings) *runtimeapi.LinuxContainerResources {
	requests, limits := c.Resources.Requests, limitsOf(p, c)
	out := linuxResources(requests, limits, s)
	if s.CPUQuota.IsLifted(p, c) {
		out.CpuQuota, out.CpuPeriod = 0, 0
	}
	s.setSwap(out, p, c)
	for _, size := range s.HugePageSizes {
		name := v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
		limit := limits[name]
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: hugePageSize(size), Limit: uint64(limit.Value())})
	}
	if s.CgroupVersion != 2 {
		return out
	}
	if s.KillTogether {
		setUnified(out, "memory.oom.group", 1)
	}
	s.setMemoryQoS(out, p, requests.Memory().Value())
	return out
}

// limitsOf returns the container's limits, and the pod's for those that it does not set.
func limitsOf(p *v1.Pod, c *v1.Container) v1.ResourceList {
	if p.Spec.Resources == nil || len(p.Spec.Resources.Limits) == 0 {
		return c.Resources.Limits
	}
	out := p.Spec.Resources.Limits.DeepCopy()
	for name, q := range c.Resources.Limits {
		if !q.IsZero() {
			out[name] = q
		}
	}
	return out
}

// linuxResources returns CPU and memory as kernel values. Without a CPU request, the limit
// determines the shares.
func linuxResources(requests, limits v1.ResourceList, s ResourceSettings) *runtimeapi.LinuxContainerResources {
	cpu, asked := requests[v1.ResourceCPU]
	if limit, ok := limits[v1.ResourceCPU]; ok && !asked {
		cpu = limit
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          int64(cgroups.SharesFromMilliCPU(cpu.MilliValue())),
		MemoryLimitInBytes: limits.Memory().Value(),
	}
	out.CpuQuota, out.CpuPeriod = s.CPUQuota.Of(limits.Cpu().MilliValue())
	return out
}

// setSwap limits swap: on cgroup v1 together with memory, on v2 separately.
func (s ResourceSettings) setSwap(out *runtimeapi.LinuxContainerResources, p *v1.Pod, c *v1.Container) {
	switch {
	case !s.SwapAccounted:
	case s.CgroupVersion == 2:
		setUnified(out, "memory.swap.max", s.swapLimit(p, c))
	default:
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	}
}

// swapLimit returns the container's swap limit in bytes. Only Burstable pods swap, and of their
// containers those that request memory, but less than their limit (KEP-2400).
func (s ResourceSettings) swapLimit(p *v1.Pod, c *v1.Container) int64 {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if !s.LimitedSwap || cgroups.QOSClass(p) != v1.PodQOSBurstable || pod.IsCritical(p) || request.Cmp(*limit) == 0 {
		return 0
	}
	return cgroups.SwapLimit(request.Value(), s.NodeMemory, s.NodeSwap)
}

// setMemoryQoS throttles the container before it reaches its limit, and protects its request from
// reclaim.
func (s ResourceSettings) setMemoryQoS(out *runtimeapi.LinuxContainerResources, p *v1.Pod, request int64) {
	if s.MemoryQoS == nil {
		return
	}
	class := cgroups.QOSClass(p)
	// Zero values are set too: a resize may have to reset earlier values.
	if s.MemoryQoS.Reserves() {
		lowest, low := s.MemoryQoS.Protected(class, request)
		setUnified(out, "memory.min", lowest)
		setUnified(out, "memory.low", low)
	}
	if class == v1.PodQOSGuaranteed {
		return
	}
	if high := s.MemoryQoS.High(request, out.MemoryLimitInBytes); high > 0 {
		setUnified(out, "memory.high", high)
	} else {
		setUnified(out, "memory.high", "max")
	}
}

// setUnified sets a file of cgroup v2 to a number or "max".
func setUnified(out *runtimeapi.LinuxContainerResources, file string, value any) {
	if out.Unified == nil {
		out.Unified = map[string]string{}
	}
	out.Unified[file] = fmt.Sprint(value)
}

// hugePageSize formats a page size for the runtime (OCI runtime specification, hugepageLimits):
// 64KB, 2MB, 1GB.
func hugePageSize(size int64) string {
	for _, unit := range []struct {
		shift int
		name  string
	}{{30, "GB"}, {20, "MB"}} {
		if n := size >> unit.shift; n > 0 && n<<unit.shift == size {
			return strconv.FormatInt(n, 10) + unit.name
		}
	}
	return strconv.FormatInt(size>>10, 10) + "KB"
}

// Overhead returns the resources of the sandbox itself (KEP-688), nil if the pod has no overhead.
func Overhead(p *v1.Pod, s ResourceSettings) *runtimeapi.LinuxContainerResources {
	if len(p.Spec.Overhead) == 0 {
		return nil
	}
	return linuxResources(p.Spec.Overhead, p.Spec.Overhead, s)
}

// SandboxResources returns the total resources of the pod's containers. VM-based runtimes size the
// pod's VM by them: limits that only some containers have enlarge it, and do not bound anything.
func SandboxResources(p *v1.Pod, s ResourceSettings) *runtimeapi.LinuxContainerResources {
	containers := podresource.PodResourcesOptions{ExcludeOverhead: true}
	return linuxResources(podresource.PodRequests(p, containers), podresource.PodLimits(p, containers), s)
}

// OOM scores of the QoS classes (Kubernetes documentation, "Node-pressure Eviction", node out of
// memory behaviour).
const (
	guaranteedOOMScore   = -997
	bestEffortOOMScore   = 1000
	minBurstableOOMScore = 3
	maxBurstableOOMScore = 999

	systemNodeCritical = 2_000_001_000
)

// computeOOMScore returns oom_score_adj of a container: the smaller its memory request relative to
// the node's memory, the sooner it is killed. A pod-level request beyond those of the containers
// counts for each of them in equal parts (KEP-2837).
func computeOOMScore(p *v1.Pod, c *v1.Container, nodeMemory int64) int64 {
	if p.Spec.Priority != nil && *p.Spec.Priority >= systemNodeCritical {
		return guaranteedOOMScore
	}
	switch cgroups.QOSClass(p) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case v1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	if nodeMemory <= 0 {
		return maxBurstableOOMScore
	}
	shared := sharedMemoryRequest(p)
	score := func(c *v1.Container) int64 {
		request := c.Resources.Requests.Memory().Value() + shared
		return 1000 - 1000*request/nodeMemory
	}
	s := score(c)
	if lifecycle.IsSidecar(c) {
		// A sidecar must not be killed before the containers that it serves.
		for i := range p.Spec.Containers {
			s = min(s, score(&p.Spec.Containers[i]))
		}
	}
	return min(max(s, minBurstableOOMScore), maxBurstableOOMScore)
}

// sharedMemoryRequest returns each long-running container's share of the pod-level memory request
// beyond those of the containers.
func sharedMemoryRequest(p *v1.Pod) int64 {
	if p.Spec.Resources == nil {
		return 0
	}
	rest, n := p.Spec.Resources.Requests.Memory().Value(), int64(0)
	for c := range servingContainers(p) {
		rest -= c.Resources.Requests.Memory().Value()
		n++
	}
	if rest <= 0 || n == 0 {
		return 0
	}
	return rest / n
}
