// Package pressure makes the kernel wake evictionManager when memory may be short, so that memory
// usage need not be polled. A wake-up only means "check now".
//
//	threshold     a memory usage; the kernel reports once that it was crossed
//	notification  the kernel reports that tasks wait for memory, or that the pods are at their limit
//
// Thresholds are exact, but do not help if file caches fill the memory: memory that pods allocate
// then is taken from the caches, and the usage does not change. Notifications detect that, with a
// short delay.
//
// Cgroup version 1 supports thresholds of memory.usage_in_bytes
// (Documentation/admin-guide/cgroup-v1/memory.rst, 9. Memory thresholds). Version 2 does not. There
// the threshold is memory.high of the pods' cgroup, which counts an event when it is crossed, and
// throttles the pods from then on (Documentation/admin-guide/cgroup-v2.rst). It is therefore
// removed at once on the event, and first of all on any failure.
//
// A pod that is being evicted can allocate more memory until it has terminated. On version 2,
// memory.high of its own cgroup prevents that (Hold).
//
// Owns: memory.high of the pods' cgroup, unless another program has set it, and a mark on that
// cgroup that identifies the value of an agent that was killed; memory.high of a pod's cgroup from
// its eviction on.
// Reads: the memory usage and limits of the machine's and the pods' cgroup; pressure stall
// information (Documentation/accounting/psi.rst).
// Never: decides that memory is short, changes a memory.high that another program has set.
package pressure
