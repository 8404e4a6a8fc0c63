package cpumanager

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// pools are the shared CPUs and the exclusive CPUs by pod and container. It is immutable: changes
// return a new value.
type pools struct {
	shared cpuset.CPUSet // the default set
	owned  map[pod.UID]map[string]cpuset.CPUSet
}

// give returns the pools after the allocation of cpus to the container.
func (p pools) give(uid pod.UID, container string, cpus cpuset.CPUSet) pools {
	owned, containers := maps.Clone(p.owned), maps.Clone(p.owned[uid])
	if owned == nil {
		owned = map[pod.UID]map[string]cpuset.CPUSet{}
	}
	if containers == nil {
		containers = map[string]cpuset.CPUSet{}
	}
	containers[container] = cpus
	owned[uid] = containers
	return pools{p.shared.Difference(cpus), owned}
}

// release returns the pools after the release of the pod's CPUs, and these CPUs.
func (p pools) release(uid pod.UID) (next pools, freed cpuset.CPUSet) {
	freed = union(p.owned[uid])
	owned := maps.Clone(p.owned)
	delete(owned, uid)
	return pools{p.shared.Union(freed), owned}, freed
}

func (p pools) exclusive() cpuset.CPUSet {
	out := cpuset.New()
	for _, containers := range p.owned {
		out = out.Union(union(containers))
	}
	return out
}

func union(of map[string]cpuset.CPUSet) cpuset.CPUSet {
	out := cpuset.New()
	for _, cpus := range of {
		out = out.Union(cpus)
	}
	return out
}

// reusable returns the CPUs of the pod's plain init containers before c, which have exited when c
// starts, without those of containers that run beside c.
func reusable(p *v1.Pod, c *v1.Container, has map[string]cpuset.CPUSet) cpuset.CPUSet {
	left, taken := cpuset.New(), cpuset.New()
	before := true
	for i := range p.Spec.InitContainers {
		other := &p.Spec.InitContainers[i]
		before = before && other.Name != c.Name
		switch {
		case lifecycle.IsSidecar(other):
			taken = taken.Union(has[other.Name])
		case before:
			left = left.Union(has[other.Name])
		}
	}
	for i := range p.Spec.Containers {
		taken = taken.Union(has[p.Spec.Containers[i].Name])
	}
	return left.Difference(taken)
}

// check validates pools that were read from a file.
func (p pools) check(l *layout, reserved cpuset.CPUSet, o options) error {
	exclusive := p.exclusive()
	all := p.shared.Union(exclusive)
	switch {
	case o[strictReservation]:
		if both := p.shared.Intersection(reserved); !both.IsEmpty() {
			return fmt.Errorf("the reserved CPUs %q are in the default set %q, although strict-cpu-reservation keeps them out", both, p.shared)
		}
		if both := exclusive.Intersection(reserved); !both.IsEmpty() {
			return fmt.Errorf("the reserved CPUs %q belong to containers, although strict-cpu-reservation keeps them free", both)
		}
		// Differs from the kubelet: an empty default set is valid if all CPUs but the reserved ones
		// are exclusive.
		all = all.Union(reserved)
	case p.shared.IsEmpty():
		return fmt.Errorf("the default set is empty, and the containers have the CPUs %q", exclusive)
	case !reserved.IsSubsetOf(p.shared):
		return fmt.Errorf("not all of the reserved CPUs %q are in the default set %q", reserved, p.shared)
	}
	if err := p.checkOwners(); err != nil {
		return err
	}
	if !all.Equals(l.online) {
		return fmt.Errorf("the CPUs that are online are %q, those of the file %q", l.online, all)
	}
	return nil
}

// checkOwners returns an error if a CPU has two owners.
func (p pools) checkOwners() error {
	owner := map[int]pod.UID{}
	for uid, containers := range p.owned {
		for name, cpus := range containers {
			if both := cpus.Intersection(p.shared); !both.IsEmpty() {
				return fmt.Errorf("the CPUs %q of container %s of pod %s are in the default set %q, too", both, name, uid, p.shared)
			}
			for _, cpu := range cpus.UnsortedList() {
				if other, ok := owner[cpu]; ok && other != uid {
					return fmt.Errorf("CPU %d belongs to the pods %s and %s", cpu, min(uid, other), max(uid, other))
				}
				owner[cpu] = uid
			}
		}
	}
	return nil
}
