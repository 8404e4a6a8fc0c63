package shims

import (
	"berth/bundle/podshim/plan"
)

// confinement returns the confinement of a container's processes. It is read from the specification
// at the first use, which may be after a restart.
func (t *task) confinement() (plan.Confinement, error) {
	t.pod.mu.Lock()
	known := t.confined
	t.pod.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	spec, err := readSpec(t.record.Bundle)
	if err != nil {
		return plan.Confinement{}, err
	}
	c, err := plan.Confine(spec)
	if err != nil {
		return plan.Confinement{}, err
	}
	t.pod.mu.Lock()
	t.confined = &c
	t.pod.mu.Unlock()
	return c, nil
}
