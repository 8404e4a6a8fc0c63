package cpumanager

import (
	"cmp"
	"slices"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
)

type division int

const (
	byNode division = iota
	bySocket
	byCache
	byCore
)

func (d division) of(c machine.CPU) int {
	switch d {
	case byNode:
		return c.Node
	case bySocket:
		return c.Socket
	case byCache:
		return c.Cache
	default:
		return c.Core
	}
}

type divider struct {
	divisions []division // from the outside in
	free      cpuset.CPUSet
}

// part is a part of a machine. A cache or socket that extends beyond the enclosing part is
// represented by two parts, so that parts nest.
type part struct {
	id, level int
	around    *part
	inside    []*part
	// size is the number of CPUs, free the number of free ones.
	size, free int
	// left are the free CPUs of a core, ascending.
	left []int
}

// divide returns the root part of a machine with these CPUs. It sorts cpus.
func (d divider) divide(cpus []machine.CPU) *part {
	slices.SortFunc(cpus, func(a, b machine.CPU) int {
		for _, by := range d.divisions {
			if c := cmp.Compare(by.of(a), by.of(b)); c != 0 {
				return c
			}
		}
		return cmp.Compare(a.ID, b.ID)
	})
	root := &part{}
	d.fill(root, cpus)
	return root
}

func (d divider) fill(p *part, cpus []machine.CPU) {
	p.size = len(cpus)
	if p.level == len(d.divisions) {
		for _, c := range cpus {
			if d.free.Contains(c.ID) {
				p.left = append(p.left, c.ID)
			}
		}
		p.free = len(p.left)
		return
	}
	of := d.divisions[p.level].of
	for len(cpus) > 0 {
		id := of(cpus[0])
		end := 1
		for end < len(cpus) && of(cpus[end]) == id {
			end++
		}
		in := &part{id: id, level: p.level + 1, around: p}
		d.fill(in, cpus[:end])
		p.inside = append(p.inside, in)
		p.free += in.free
		cpus = cpus[end:]
	}
}

// at returns the parts the given number of levels inside, grouped by enclosing part, in ascending
// order of free CPUs, then of ID.
func (p *part) at(levels int) []*part { return p.appendAt(nil, levels) }

func (p *part) appendAt(to []*part, levels int) []*part {
	if levels == 0 {
		return append(to, p)
	}
	inside := slices.SortedFunc(slices.Values(p.inside), func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.free, b.free), cmp.Compare(a.id, b.id))
	})
	for _, in := range inside {
		to = in.appendAt(to, levels-1)
	}
	return to
}

// give removes the first n free CPUs of a core and returns them.
func (p *part) give(n int) []int {
	ids := p.left[:n]
	p.left = p.left[n:]
	for u := p; u != nil; u = u.around {
		u.free -= n
	}
	return ids
}

// next returns the first free CPU of a core, or 0.
func (p *part) next() int {
	if len(p.left) == 0 {
		return 0
	}
	return p.left[0]
}
