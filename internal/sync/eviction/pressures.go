package eviction

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Pressures has the current pressure conditions of the node. Only the manager writes it. It is safe
// for concurrent use.
type Pressures struct {
	mu sync.Mutex
	is map[v1.NodeConditionType]bool // guarded by mu
}

// NewPressures returns Pressures without conditions.
func NewPressures() *Pressures { return &Pressures{is: map[v1.NodeConditionType]bool{}} }

// Conditions returns the conditions of the node: MemoryPressure, DiskPressure, PIDPressure, in this
// order.
func (p *Pressures) Conditions() []v1.NodeConditionType {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []v1.NodeConditionType
	for _, c := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		if p.is[c] {
			out = append(out, c)
		}
	}
	return out
}

// Has reports whether the node has the condition.
func (p *Pressures) Has(c v1.NodeConditionType) bool { return slices.Contains(p.Conditions(), c) }

// set replaces the conditions of the given types, and returns which began and which ended.
func (p *Pressures) set(of []v1.NodeConditionType, is map[v1.NodeConditionType]bool) (began, ended []v1.NodeConditionType) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range of {
		switch {
		case is[c] && !p.is[c]:
			began = append(began, c)
		case !is[c] && p.is[c]:
			ended = append(ended, c)
		}
		p.is[c] = is[c]
	}
	return began, ended
}
