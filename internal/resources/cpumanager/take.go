package cpumanager

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
)

// TakeOptions are the options of the static policy that affect which CPUs are chosen (Kubernetes
// documentation, "Control CPU Management Policies on the Node", "Static policy options").
type TakeOptions struct {
	// AlignByUncoreCache is prefer-align-cpus-by-uncorecache.
	AlignByUncoreCache bool
	// SpreadAcrossCores is distribute-cpus-across-cores.
	SpreadAcrossCores bool
	// SpreadAcrossNodes is distribute-cpus-across-numa.
	SpreadAcrossNodes bool
	// GroupSize is the number of CPUs that are only allocated together: the threads per core with
	// full-pcpus-only, else 1 or 0.
	GroupSize int
}

// takeCPUs returns n of the free CPUs. The result is deterministic and does not depend on the order
// of the machine's CPUs. Free CPUs that the machine does not have are ignored.
//
// It is greedy: it takes parts of the machine that are entirely free and not too large, NUMA nodes
// or sockets first, then cores, then single CPUs. Parts of a kind with the fewest free CPUs come
// first, to reduce fragmentation. Without options:
//
//   - Of the larger of sockets and NUMA nodes, each entirely free one is taken, or has more CPUs
//     than were taken outside of such. The same holds for cores. So at most one entirely free core
//     is split, for the last CPUs.
//   - It does not use the fewest NUMA nodes. With one free CPU on the first node and eight on the
//     second, a request for four uses both nodes, because the single CPU is a fragment. To avoid
//     this, pass only the free CPUs of the second node, or set SpreadAcrossNodes.
//
// SpreadAcrossNodes uses the fewest nodes that can each provide an equal share; if n fits on one
// node, that is one. If there are no such nodes, it has no effect.
//
// With a GroupSize, no core is shared with CPUs that are not taken, as long as the entirely free
// cores of that size have n CPUs and n is a multiple of GroupSize.
//
// It returns an error if fewer than n CPUs are free.
func takeCPUs(m *machine.Machine, free cpuset.CPUSet, n int, o TakeOptions) (cpuset.CPUSet, error) {
	if n < 1 {
		return cpuset.New(), nil
	}
	o.GroupSize = max(o.GroupSize, 1)
	l := divider{divisions: divisionsOf(m, o), free: free}
	whole := l.pick(m.CPUs, o)
	if n > whole.root.free {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, whole.root.free)
	}
	if !o.SpreadAcrossNodes {
		return cpuset.New(whole.take(n)...), nil
	}
	var nodes []*picker
	var stocks []stock
	for _, id := range m.CPUNodes() {
		p := l.pick(slices.DeleteFunc(slices.Clone(m.CPUs), func(c machine.CPU) bool { return c.Node != id }), o)
		nodes = append(nodes, p)
		stocks = append(stocks, stock{free: p.root.free, capacity: p.capacity(p.root)})
	}
	shares := spread(stocks, n, o.GroupSize)
	if shares == nil {
		return cpuset.New(whole.take(n)...), nil
	}
	var taken []int
	for i, share := range shares {
		taken = append(taken, nodes[i].take(share)...)
	}
	return cpuset.New(taken...), nil
}

// divisionsOf returns the levels of the machine's topology from the outside in. The last is byCore.
func divisionsOf(m *machine.Machine, o TakeOptions) []division {
	divisions := []division{bySocket, byNode}
	if len(m.Sockets()) >= len(m.CPUNodes()) {
		divisions = []division{byNode, bySocket}
	}
	if o.AlignByUncoreCache {
		divisions = append(divisions, byCache)
	}
	return append(divisions, byCore)
}

// picker takes CPUs of one part of a machine.
type picker struct {
	TakeOptions
	root *part
	// socket, cache and core are the levels of these divisions. The root is level 0; cache is 0
	// without AlignByUncoreCache.
	socket, cache, core int

	wanted int
	taken  []int
}

func (d divider) pick(cpus []machine.CPU, o TakeOptions) *picker {
	return &picker{
		TakeOptions: o, root: d.divide(slices.Clone(cpus)),
		socket: 1 + slices.Index(d.divisions, bySocket),
		cache:  1 + slices.Index(d.divisions, byCache),
		core:   len(d.divisions),
	}
}

// take returns n CPUs. At least n must be free.
func (p *picker) take(n int) []int {
	p.wanted, p.taken = n, nil
	p.takeWhole(p.root.at(1))
	p.takeWhole(p.root.at(2))
	if p.cache > 0 {
		p.takeWhole(p.root.at(p.cache))
		p.takeInOneCache()
	}
	if p.SpreadAcrossCores {
		p.takeSpread()
	} else {
		p.takeIn(p.root)
	}
	return p.taken
}

// takeWhole takes the parts that are entirely free and not too large.
func (p *picker) takeWhole(parts []*part) {
	for _, u := range parts {
		// With an odd number of CPUs, the remaining request would end within a core.
		if u.free == u.size && u.size <= p.wanted && u.size%p.GroupSize == 0 {
			for _, core := range p.cores(u) {
				p.takeFrom(core, core.free)
			}
		}
	}
}

// takeInOneCache takes all remaining CPUs from one cache, if one has enough.
func (p *picker) takeInOneCache() {
	if p.wanted == 0 {
		return
	}
	for _, u := range p.root.at(p.cache) {
		if p.capacity(u) >= p.wanted {
			p.takeIn(u)
			return
		}
	}
}

// takeIn takes cores of a part, then single CPUs.
func (p *picker) takeIn(u *part) {
	p.takeWhole(p.cores(u))
	for _, core := range p.cores(u) {
		// A core with offline threads is preferable to splitting a core whose other half could be
		// allocated to another container.
		if p.GroupSize > 1 && core.free == core.size && core.size <= p.wanted {
			p.takeFrom(core, core.free)
		}
	}
	for _, core := range p.cores(u) {
		p.takeFrom(core, min(core.free, p.wanted))
	}
}

func (p *picker) cores(u *part) []*part { return u.at(p.core - u.level) }

// takeSpread takes one CPU of each core of a socket before it takes a second one of any.
//
// Differs from the kubelet: it takes CPUs in the order of their IDs. That is the same on machines
// that number the first threads of all cores first; on others it takes whole cores.
func (p *picker) takeSpread() {
	for _, socket := range p.root.at(p.socket) {
		cores := p.cores(socket)
		for socket.free > 0 && p.wanted > 0 {
			slices.SortFunc(cores, func(a, b *part) int { return cmp.Compare(a.next(), b.next()) })
			for _, core := range cores {
				p.takeFrom(core, min(core.free, p.wanted, 1))
			}
		}
	}
}

// takeFrom takes the first n free CPUs of a core.
func (p *picker) takeFrom(core *part, n int) {
	p.taken = append(p.taken, core.give(n)...)
	p.wanted -= n
}

// capacity returns how many CPUs of a part can be taken. With a GroupSize, only entirely free cores
// with all their threads count.
func (p *picker) capacity(u *part) int {
	if p.GroupSize == 1 {
		return u.free
	}
	n := 0
	for _, core := range p.cores(u) {
		if core.free == core.size && core.size%p.GroupSize == 0 {
			n += core.size
		}
	}
	return n
}
