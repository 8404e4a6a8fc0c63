package node

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Eviction signals whose hard thresholds are subtracted from allocatable.
const (
	memoryAvailable = "memory.available"
	nodefsAvailable = "nodefs.available"
)

// threshold is an amount, or a fraction of the capacity.
type threshold struct {
	amount resource.Quantity
	part   float32 // 0..1; used if it is not 0
}

func (t threshold) of(capacity resource.Quantity) resource.Quantity {
	if t.part == 0 {
		return t.amount
	}
	return *resource.NewQuantity(int64(float32(capacity.Value())*t.part), resource.BinarySI)
}

// Reservation is the part of the node's capacity that pods cannot use: allocatable = capacity −
// reservation (Kubernetes documentation, "Reserve Compute Resources for System Daemons"). The zero
// value reserves nothing.
type Reservation struct {
	kube, system v1.ResourceList
	fixed        v1.ResourceList               // both, and other amounts that do not depend on the capacity
	thresholds   map[v1.ResourceName]threshold // hard eviction thresholds
}

// NewReservation returns the reservation of KubeletConfiguration's kubeReserved, systemReserved,
// evictionHard and reservedSystemCPUs, which overrides the CPU of the former two. Of evictionHard,
// only the signals of memory and the node's file system count. Errors name the field.
func NewReservation(kubeReserved, systemReserved, evictionHard map[string]string, reservedSystemCPUs string) (Reservation, error) {
	r := Reservation{
		kube: v1.ResourceList{}, system: v1.ResourceList{}, fixed: v1.ResourceList{}, thresholds: map[v1.ResourceName]threshold{},
	}
	for _, reserved := range []struct {
		field  string
		values map[string]string
		into   v1.ResourceList
	}{{"kubeReserved", kubeReserved, r.kube}, {"systemReserved", systemReserved, r.system}} {
		for _, name := range slices.Sorted(maps.Keys(reserved.values)) {
			q, err := resource.ParseQuantity(reserved.values[name])
			if err != nil {
				return Reservation{}, fmt.Errorf("%s: %s: %q: %w", reserved.field, name, reserved.values[name], err)
			}
			if q.Sign() < 0 {
				return Reservation{}, fmt.Errorf("%s: %s: %s is negative: reserve 0 or more", reserved.field, name, reserved.values[name])
			}
			reserved.into[v1.ResourceName(name)] = q
			sum := r.fixed[v1.ResourceName(name)]
			sum.Add(q)
			r.fixed[v1.ResourceName(name)] = sum
		}
	}
	if reservedSystemCPUs != "" {
		n, err := countCPUs(reservedSystemCPUs)
		if err != nil {
			return Reservation{}, fmt.Errorf("reservedSystemCPUs: %w", err)
		}
		r.fixed[v1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	for signal, name := range map[string]v1.ResourceName{memoryAvailable: v1.ResourceMemory, nodefsAvailable: v1.ResourceEphemeralStorage} {
		value, ok := evictionHard[signal]
		if !ok {
			continue
		}
		t, err := parseThreshold(value)
		if err != nil {
			return Reservation{}, fmt.Errorf("evictionHard: %s: %w", signal, err)
		}
		r.thresholds[name] = t
	}
	return r, nil
}

// parseThreshold parses "100Mi" or "10%"; 0% and 100% disable the threshold.
func parseThreshold(value string) (threshold, error) {
	percent, ok := strings.CutSuffix(value, "%")
	if !ok {
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return threshold{}, fmt.Errorf("%q: %w", value, err)
		}
		return threshold{amount: q}, nil
	}
	f, err := strconv.ParseFloat(percent, 32)
	if err != nil || !(f >= 0 && f <= 100) {
		return threshold{}, fmt.Errorf("%q is not a percentage from 0%% to 100%%", value)
	}
	if f == 100 {
		f = 0
	}
	return threshold{part: float32(f) / 100}, nil
}

// Kube returns kubeReserved. Callers must not change it.
func (r Reservation) Kube() v1.ResourceList { return r.kube }

// System returns systemReserved. Callers must not change it.
func (r Reservation) System() v1.ResourceList { return r.system }

// Enforced returns the limit of all pods together: capacity minus reservations. Eviction thresholds
// are not subtracted: pods are evicted before they reach the limit (Kubernetes documentation,
// "Reserve Compute Resources for System Daemons").
func (r Reservation) Enforced(capacity v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	for name, total := range capacity {
		left := total.DeepCopy()
		left.Sub(r.fixed[name])
		out[name] = atLeastZero(left)
	}
	return out
}

// Resources returns the capacity and the allocatable resources of the machine.
func Resources(s *Settings, m *Machine) (capacity, allocatable v1.ResourceList) {
	capacity = computeCapacity(s, m)
	return capacity, computeAllocatable(s.Reservation, capacity)
}

// Of returns the amount of a resource that is reserved at the given capacity: the daemons'
// reservation plus the hard eviction threshold.
func (r Reservation) Of(name v1.ResourceName, capacity resource.Quantity) resource.Quantity {
	sum := r.fixed[name].DeepCopy()
	if t, ok := r.thresholds[name]; ok {
		sum.Add(t.of(capacity))
	}
	return sum
}

// computeCapacity returns the capacity of the machine, without resources that could not be read.
func computeCapacity(s *Settings, m *Machine) v1.ResourceList {
	out := v1.ResourceList{}
	pods := s.MaxPods
	if m.CPUs > 0 {
		out[v1.ResourceCPU] = *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI)
		if s.PodsPerCore > 0 {
			pods = min(m.CPUs*s.PodsPerCore, s.MaxPods)
		}
	}
	out[v1.ResourcePods] = *resource.NewQuantity(int64(pods), resource.DecimalSI)
	if m.Memory > 0 {
		out[v1.ResourceMemory] = *resource.NewQuantity(m.Memory, resource.BinarySI)
	}
	if s.LocalStorageCapacityIsolation && m.Storage > 0 {
		out[v1.ResourceEphemeralStorage] = *resource.NewQuantity(m.Storage, resource.BinarySI)
	}
	for size, total := range m.HugePages {
		out[hugePagesName(size)] = *resource.NewQuantity(total, resource.BinarySI)
	}
	return out
}

// computeAllocatable returns the allocatable part of the capacity. Huge pages are subtracted from
// memory, too.
func computeAllocatable(r Reservation, capacity v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	huge := resource.Quantity{Format: resource.BinarySI}
	for name, total := range capacity {
		left := total.DeepCopy()
		left.Sub(r.Of(name, total))
		out[name] = atLeastZero(left)
		if isHugePages(name) {
			huge.Add(total)
		}
	}
	if memory, ok := out[v1.ResourceMemory]; ok {
		memory.Sub(huge)
		out[v1.ResourceMemory] = atLeastZero(memory)
	}
	return out
}

func atLeastZero(q resource.Quantity) resource.Quantity {
	if q.Sign() < 0 {
		return resource.Quantity{Format: q.Format}
	}
	return q
}

// mergeCapacity returns capacity and allocatable of a status whose capacity was old: the resources
// of the machine and of device plugins; other extended resources are retained (they may be
// advertised by hand; Kubernetes documentation, "Advertise Extended Resources for a Node").
func mergeCapacity(s *Settings, f *Facts, old v1.ResourceList) (capacity, allocatable v1.ResourceList) {
	capacity = computeCapacity(s, &f.Machine)
	for name, q := range old {
		_, known := capacity[name]
		gone := isHugePages(name) && f.Machine.HugePages != nil ||
			name == v1.ResourceEphemeralStorage && !s.LocalStorageCapacityIsolation
		if !known && !gone {
			capacity[name] = q
		}
	}
	maps.Copy(capacity, f.Devices.Capacity)
	allocatable = computeAllocatable(s.Reservation, capacity)
	maps.Copy(allocatable, f.Devices.Allocatable)
	return capacity, allocatable
}

// missingCapacity returns the required resources that this node lacks.
func missingCapacity(s *Settings, capacity v1.ResourceList) []string {
	required := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}
	if s.LocalStorageCapacityIsolation {
		required = append(required, v1.ResourceEphemeralStorage)
	}
	var missing []string
	for _, name := range required {
		if _, ok := capacity[name]; !ok {
			missing = append(missing, string(name))
		}
	}
	return missing
}

// hugePagesName returns the resource name of pages of a size in bytes, such as "hugepages-2Mi".
func hugePagesName(size int64) v1.ResourceName {
	return v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// isExtended reports whether a resource is an extended one: its name has a domain, which is not
// kubernetes.io (Kubernetes documentation, "Extended resources").
func isExtended(name v1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// countCPUs returns the number of CPUs in a list of the kernel's format, such as "0-3,8".
func countCPUs(list string) (int, error) {
	seen := map[int]bool{}
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || last < first {
			return 0, fmt.Errorf("%q is not a list of CPUs such as 0-3,8", list)
		}
		for cpu := first; cpu <= last; cpu++ {
			seen[int(cpu)] = true
		}
	}
	return len(seen), nil
}
