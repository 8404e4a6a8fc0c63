package cpumanager

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
)

// TakeOptions are the options of the static policy that say which CPUs are taken.
type TakeOptions struct {
	AlignByUncoreCache bool // prefer-align-cpus-by-uncorecache
	SpreadAcrossCores  bool // distribute-cpus-across-cores
	SpreadAcrossNodes  bool // distribute-cpus-across-numa
	GroupSize          int  // threads per core with full-pcpus-only, else 1
}

// takeCPUs returns n of the free CPUs: the lowest, core by core, whole cores first.
func takeCPUs(m *machine.Machine, free cpuset.CPUSet, n int, _ TakeOptions) (cpuset.CPUSet, error) {
	if free.Size() < n {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	cpus, taken, missing := slices.Clone(m.CPUs), map[int]int{}, map[int]int{}
	for _, c := range cpus {
		if !free.Contains(c.ID) {
			missing[c.Core]++
		}
	}
	slices.SortFunc(cpus, func(a, b machine.CPU) int {
		return cmp.Or(cmp.Compare(missing[a.Core], missing[b.Core]), cmp.Compare(a.Core, b.Core), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range cpus {
		if free.Contains(c.ID) && len(taken) < n {
			taken[c.ID] = c.Core
		}
	}
	if len(taken) < n {
		return cpuset.New(), errors.New("failed to allocate cpus")
	}
	var ids []int
	for id := range taken {
		ids = append(ids, id)
	}
	return cpuset.New(ids...), nil
}
