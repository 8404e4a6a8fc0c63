package kuberuntime

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroups"
	"berth/internal/runtime/crispec"
)

// resizeStep changes one value: of the pod's cgroup, or of a container in it.
type resizeStep struct {
	// Container is "" for the pod's cgroup, of which Part is changed.
	Container string
	Part      cgroups.PodPart
	// Update are the container's new values.
	Update *runtimeapi.LinuxContainerResources
	// Lowers is the new memory limit in bytes if the step lowers one, else 0: what is used must be
	// less.
	Lowers int64

	way direction
}

func (s resizeStep) String() string {
	if s.Container == "" {
		return "pod " + s.Part.String()
	}
	return fmt.Sprintf("%s %s", s.Container, s.Part)
}

// growsPod reports whether the step lets the pod as a whole have more.
func (s resizeStep) growsPod() bool { return s.Container == "" && s.way == grows }

// holding is what holds before a resize: the pod as its cgroup was made, and as its containers
// were.
type holding struct{ Cgroup, Containers *v1.Pod }

// extent says what a resize writes.
type extent int

const (
	changedOnly extent = iota
	everything         // nobody knows how far an earlier resize has come
)

// computeResizeSteps returns how to get from the resources that hold to those that the pod was
// given, without any container ever having more than its pod: memory first, then CPU. What grows
// grows in the pod first, what shrinks shrinks in the containers first; among the containers, those
// that shrink come first. Only the named containers run.
func computeResizeSteps(has holding, given *v1.Pod, running []string, e extent, settings crispec.ResourceSettings) []resizeStep {
	podSteps := func(way direction, parts ...cgroups.PodPart) (steps []resizeStep) {
		for _, part := range parts {
			from, to := cgroups.PodValue(has.Cgroup, part), cgroups.PodValue(given, part)
			goes := compareLimits(from, to) // shares are never 0
			if part == cgroups.MemoryRequest {
				if !settings.MemoryQoS.Reserves() {
					continue
				}
				goes = direction(cmp.Compare(to, from))
			}
			if goes == stays && e == everything {
				goes = shrinks
			}
			if goes != way {
				continue
			}
			s := resizeStep{Part: part, way: goes}
			if part == cgroups.MemoryLimit && (goes == shrinks || e == everything) {
				s.Lowers = to
			}
			steps = append(steps, s)
		}
		return steps
	}
	containers := func(of func(from, to *runtimeapi.LinuxContainerResources, e extent) resizeStep) (steps []resizeStep) {
		for _, name := range running {
			was, is := findSpec(has.Containers, name), findSpec(given, name)
			if was == nil || is == nil {
				continue
			}
			s := of(crispec.ContainerResources(has.Containers, was, settings), crispec.ContainerResources(given, is, settings), e)
			if s.Container = name; s.Update != nil {
				steps = append(steps, s)
			}
		}
		slices.SortStableFunc(steps, func(a, b resizeStep) int { return cmp.Compare(a.way, b.way) })
		return steps
	}
	return slices.Concat(
		podSteps(grows, cgroups.MemoryLimit, cgroups.MemoryRequest), containers(memoryOf), podSteps(shrinks, cgroups.MemoryRequest, cgroups.MemoryLimit),
		podSteps(grows, cgroups.CPULimit, cgroups.CPURequest), containers(cpuOf), podSteps(shrinks, cgroups.CPURequest, cgroups.CPULimit),
	)
}

// direction is where a value goes.
type direction int

const (
	shrinks direction = iota - 1
	stays
	grows
)

// compareLimits says where a limit goes; 0 is none.
func compareLimits(from, to int64) direction {
	unlimited := func(n int64) int64 {
		if n <= 0 {
			return math.MaxInt64
		}
		return n
	}
	return direction(cmp.Compare(unlimited(to), unlimited(from)))
}

// memoryOf is the change of what is said of a container's memory. A limit cannot be taken away in
// place: 0 leaves it as it is.
func memoryOf(from, to *runtimeapi.LinuxContainerResources, e extent) resizeStep {
	s := resizeStep{Part: cgroups.MemoryLimit, way: compareLimits(from.MemoryLimitInBytes, to.MemoryLimitInBytes)}
	of := func(r *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: r.MemoryLimitInBytes, MemorySwapLimitInBytes: r.MemorySwapLimitInBytes, Unified: r.Unified}
	}
	if proto.Equal(of(from), of(to)) && e == changedOnly {
		return s
	}
	s.Update = of(to)
	if s.way == shrinks || e == everything {
		s.Lowers = to.MemoryLimitInBytes
	}
	return s
}

// cpuOf is the change of a container's CPU time. Where its limit stays, its share says the way.
func cpuOf(from, to *runtimeapi.LinuxContainerResources, e extent) resizeStep {
	s := resizeStep{
		Part: cgroups.CPULimit,
		way:  cmp.Or(compareLimits(from.CpuQuota, to.CpuQuota), direction(cmp.Compare(to.CpuShares, from.CpuShares))),
	}
	if s.way != stays || e == everything {
		s.Update = &runtimeapi.LinuxContainerResources{CpuShares: to.CpuShares, CpuQuota: to.CpuQuota, CpuPeriod: to.CpuPeriod}
	}
	return s
}
