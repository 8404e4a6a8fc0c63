package cpumanager

import (
	"cmp"
	"fmt"
	"maps"
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

// takeCPUs returns n of the free CPUs: whole cores first, then single CPUs of those cores that have
// the fewest free ones.
func takeCPUs(m *machine.Machine, free cpuset.CPUSet, n int, _ TakeOptions) (cpuset.CPUSet, error) {
	if free.Size() < n {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	all, left := map[int][]int{}, map[int][]int{}
	for _, c := range m.CPUs {
		all[c.Core] = append(all[c.Core], c.ID)
		if free.Contains(c.ID) {
			left[c.Core] = append(left[c.Core], c.ID)
		}
	}
	var taken []int
	for _, core := range slices.Sorted(maps.Keys(left)) {
		if size := len(left[core]); size == len(all[core]) && len(taken)+size <= n {
			taken = append(taken, left[core]...)
			delete(left, core)
		}
	}
	for _, core := range slices.SortedFunc(maps.Keys(left), func(a, b int) int {
		return cmp.Or(cmp.Compare(len(left[a]), len(left[b])), cmp.Compare(a, b))
	}) {
		slices.Sort(left[core])
		taken = append(taken, left[core][:min(n-len(taken), len(left[core]))]...)
	}
	return cpuset.New(taken...), nil
}
