// Package cgroups is containerManager's core: the tree of QoS and pod cgroups, and the formulas
// that fill it.
//
//	<root>/kubepods                       shares and limits of the node's allocatable
//	        ├─ pod<uid>                   Guaranteed pods
//	        ├─ burstable/pod<uid>         shares of burstable: the sum of its pods' CPU requests, those of an earlier agent included
//	        └─ besteffort/pod<uid>
//	<root>/berth-registry-<n>             memory of a program of the agent's own, while it runs
//
// Owns: kubepods and what is below it down to the pods, in every hierarchy; the cgroups of daemons,
// and which processes are moved there; those of programs of the agent's own. It is the only writer
// of cgroupfs, but for memory.high of kubepods, and of pods that end for want of memory (package
// pressure).
// Reads: pods' resources.
// Never: makes containers' cgroups (the runtime does), kills a process outside of a pod, or of the
// cgroup of such a program, that is to be removed.
package cgroups
