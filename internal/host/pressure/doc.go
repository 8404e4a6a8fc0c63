// Package pressure has the kernel wake evictionManager when memory may have become short, so that
// nobody has to read it while there is enough. A wake-up says "look now", and nothing else.
//
//	wire   a use of memory that the kernel tells of when it is crossed, once
//	alarm  the kernel tells that tasks have to wait for memory, or that the pods are at their limit
//
// Wires are exact, and of no help where caches of files fill the memory: what pods take then comes
// from the caches, and the use stays as it is. Alarms see that, a little late.
//
// Cgroup version 1 has wires of its own: thresholds of memory.usage_in_bytes
// (Documentation/admin-guide/cgroup-v1/memory.rst, 9. Memory thresholds). Version 2 has none. There
// the wire is memory.high of the pods' cgroup, which counts an event when it is crossed, and slows
// the pods down from then on (Documentation/admin-guide/cgroup-v2.rst); so it is taken away as soon
// as the event is there. Whatever fails, it is taken away first.
//
// A pod that is evicted can take more until it ends. On version 2, memory.high of its own cgroup
// holds it (Hold).
//
// Owns: memory.high of the pods' cgroup, unless somebody else has set it, and a mark on that cgroup
// by which it knows a value that an agent left when it was killed; memory.high of a pod's cgroup
// from its eviction on.
// Reads: the use and the limits of memory of the machine's and the pods' cgroup; pressure stall
// information (Documentation/accounting/psi.rst).
// Never: decides that memory is short, touches a memory.high that somebody else has set.
package pressure
