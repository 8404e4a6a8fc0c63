// Package cgroups is containerManager's core: the tree of QoS and pod cgroups, and the formulas
// that fill it.
//
//	<root>/kubepods                       shares and limits of the node's allocatable
//	        ├─ pod<uid>                   Guaranteed pods
//	        ├─ burstable/pod<uid>         shares of burstable: the sum of its pods' CPU requests, those of an earlier agent included
//	        └─ besteffort/pod<uid>
//
// Owns: kubepods and what is below it down to the pods, in every hierarchy; the cgroups of daemons,
// and which processes are moved there; it is the only writer of cgroupfs, but for memory.high of
// kubepods, and of pods that end for want of memory (package pressure).
// Reads: pods' resources.
// Never: makes containers' cgroups (the runtime does), kills a process outside of a pod that is to
// be removed.
package cgroups
