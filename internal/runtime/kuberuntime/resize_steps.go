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

// resizeStep changes one value of the pod's cgroup or of a container.
type resizeStep struct {
	// Container is "" for the pod's cgroup, of which Part is changed.
	Container string
	Part      cgroups.PodPart
	// Update are the container's new values.
	Update *runtimeapi.LinuxContainerResources
	// Lowers is the new memory limit in bytes if the step lowers one, else 0: the usage must be
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

// growsPod reports whether the step increases a value of the pod's cgroup.
func (s resizeStep) growsPod() bool { return s.Container == "" && s.way == grows }

// holding is the state before a resize: the pod as actuated in its cgroup, and in its containers.
type holding struct{ Cgroup, Containers *v1.Pod }

// extent is the set of values that a resize writes.
type extent int

const (
	changedOnly extent = iota
	everything         // the progress of an earlier resize is unknown
)

// computeResizeSteps returns the steps from the actuated to the allocated resources, such that no
// container ever has more than its pod: memory first, then CPU. Increases apply to the pod first,
// decreases to the containers first; among the containers, decreases come first. Only the named
// containers are running.
func computeResizeSteps(has holding, allocated *v1.Pod, running []string, e extent, settings crispec.ResourceSettings) []resizeStep {
	podSteps := func(way direction, parts ...cgroups.PodPart) (steps []resizeStep) {
		for _, part := range parts {
			from, to := cgroups.PodValue(has.Cgroup, part), cgroups.PodValue(allocated, part)
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
			was, is := findSpec(has.Containers, name), findSpec(allocated, name)
			if was == nil || is == nil {
				continue
			}
			s := of(crispec.ContainerResources(has.Containers, was, settings), crispec.ContainerResources(allocated, is, settings), e)
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

type direction int

const (
	shrinks direction = iota - 1
	stays
	grows
)

// compareLimits returns the direction of a limit's change; 0 is no limit.
func compareLimits(from, to int64) direction {
	unlimited := func(n int64) int64 {
		if n <= 0 {
			return math.MaxInt64
		}
		return n
	}
	return direction(cmp.Compare(unlimited(to), unlimited(from)))
}

// memoryOf is the change of a container's memory values. A limit cannot be removed in place: 0
// leaves it unchanged.
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

// cpuOf is the change of a container's CPU values. If its limit is unchanged, its shares determine
// the direction.
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
