package volumes

import (
	"context"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Inputs are the inputs of a pod's volumes at one moment; they contain secrets.
type Inputs struct {
	volumes map[string]volume // by name
}

// Live reports whether a pod has volumes whose content may change, and which need a Setup in every
// pass.
func (in Inputs) Live() bool {
	for _, v := range in.volumes {
		if v.live {
			return true
		}
	}
	return false
}

// Groups returns the supplemental groups that the pod's volumes require, in addition to those of
// the pod.
func (in Inputs) Groups() []int64 {
	var groups []int64
	for _, v := range in.volumes {
		if v.bound == nil {
			continue
		}
		if gid, err := strconv.ParseInt(v.bound.Annotations[gidAnnotation], 10, 64); err == nil && gid > 0 {
			groups = append(groups, gid)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// Prepare reads the inputs of the pod's volumes; it creates nothing. It returns the inputs of all
// volumes that did not fail. Nothing of the pod may be created until it has succeeded once; later,
// a volume without inputs stays as it is.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) (Inputs, Errors) {
	began := time.Now()
	all, err := m.each(p, Inputs{}, func(v *volume) {
		err := m.claims.resolve(ctx, v)
		if k, ok := m.kindOf(v).(preparer); ok && err == nil {
			err = k.prepare(ctx, v)
		}
		if err == nil {
			return
		}
		v.failure = failed(v.name(), err)
		if v.failure.Class == MountFailed {
			m.host.metrics.operated(ctx, v.counted(), mountVolume, time.Since(began), err)
		}
	})
	if err != nil {
		return Inputs{}, Errors{{Err: err}}
	}
	in := Inputs{volumes: map[string]volume{}}
	var errs Errors
	for _, v := range all {
		if v.failure != nil {
			errs = append(errs, v.failure)
			v = &volume{live: v.live, spec: v.spec}
		}
		in.volumes[v.spec.Name] = *v
	}
	return in, errs
}
