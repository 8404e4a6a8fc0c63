package eviction

import (
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/host/cgroups"
	"berth/internal/observe/stats"
)

// limits are the limits of one pod that are measured together.
type limits struct {
	volumes    []limit // emptyDirs with a sizeLimit, in the order of the spec
	pod        *limit  // nil: no limit
	containers []limit // in the order of the spec
	// ephemeral are the volumes that count for pod.
	ephemeral []string
}

type limit struct {
	name string // of the volume or container; "" for the pod
	most resource.Quantity
}

// computeLimits returns the limits of the pod with its allocation: of files in memory, which are
// cheap to measure, and of files on disks. The pod has a limit if each of its init and regular
// containers has one.
//
// Differs from the kubelet: there the limits of some containers bound the pod, including the usage
// of the others.
func computeLimits(p *v1.Pod) (memory, disk limits) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if stats.IsEphemeral(v) {
			disk.ephemeral = append(disk.ephemeral, v.Name)
		}
		if e := v.EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			of := &disk
			if e.Medium == v1.StorageMediumMemory {
				of = &memory
			}
			of.volumes = append(of.volumes, limit{v.Name, *e.SizeLimit})
		}
	}
	if most, ok := cgroups.PodLimits(p, podresource.PodResourcesOptions{})[v1.ResourceEphemeralStorage]; ok {
		disk.pod = &limit{most: most}
	}
	for i := range p.Spec.Containers {
		if most, ok := p.Spec.Containers[i].Resources.Limits[v1.ResourceEphemeralStorage]; ok {
			disk.containers = append(disk.containers, limit{p.Spec.Containers[i].Name, most})
		}
	}
	return memory, disk
}

func (l *limits) none() bool { return len(l.volumes) == 0 && l.pod == nil && len(l.containers) == 0 }

// extent returns what must be measured to check the limits.
func (l *limits) extent() stats.Extent {
	e := stats.Extent{Containers: l.pod != nil || len(l.containers) > 0}
	for _, v := range l.volumes {
		e.Volumes = append(e.Volumes, v.name)
	}
	if l.pod != nil {
		e.Volumes = append(e.Volumes, l.ephemeral...)
	}
	slices.Sort(e.Volumes)
	e.Volumes = slices.Compact(e.Volumes)
	return e
}

type excess struct {
	signal  Signal
	message string // the kubelet's wording
	used    uint64 // bytes
}

func (e *excess) why() string {
	return fmt.Sprintf("%s: %s%d bytes are used", e.signal, e.message, e.used)
}

// computeExcess returns the first exceeded limit, in the order emptyDirs, pod, containers; nil if
// there is none. headroom is how many bytes can be written before a limit can be exceeded.
func computeExcess(l *limits, u *stats.Local) (first *excess, headroom uint64) {
	headroom = math.MaxUint64
	check := func(used uint64, most limit, signal Signal, format string, args ...any) {
		bound := uint64(max(most.most.Value(), 0))
		if used <= bound {
			headroom = min(headroom, bound-used)
			return
		}
		headroom = 0
		if first == nil {
			first = &excess{signal, fmt.Sprintf(format, append(args, most.most.String())...), used}
		}
	}
	for _, v := range l.volumes {
		check(u.Volumes[v.name].Bytes, v, EmptyDirLimit, "Usage of EmptyDir volume %q exceeds the limit %q. ", v.name)
	}
	if l.pod != nil {
		used := u.Own.Bytes
		for _, c := range u.Containers {
			used += c.Rootfs.Bytes + c.Logs.Bytes
		}
		for _, name := range l.ephemeral {
			used += u.Volumes[name].Bytes
		}
		check(used, *l.pod, PodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers %s. ")
	}
	for _, c := range l.containers {
		files := u.Containers[c.name]
		used := files.Logs.Bytes
		if !files.Dedicated {
			used += files.Rootfs.Bytes
		}
		check(used, c, ContainerLimit, "Container %s exceeded its local ephemeral storage limit %q. ", c.name)
	}
	return first, headroom
}
