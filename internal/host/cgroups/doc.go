// Package cgroups is containerManager's core: the tree of QoS and pod cgroups, and the formulas for
// their values.
//
//	<root>/kubepods                       shares and limits of the node's allocatable
//	        ├─ pod<uid>                   Guaranteed pods
//	        ├─ burstable/pod<uid>         shares: sum of pods' CPU requests, earlier agents' too
//	        └─ besteffort/pod<uid>
//	<root>/berth-apiserver-<n>            memory limit of a child process of the agent
//
// Owns: kubepods and its descendants down to the pods, in every hierarchy; the cgroups of daemons,
// and which processes are moved there; those of the agent's child processes. It is the only writer
// of cgroupfs, except for memory.high of kubepods and of pods being evicted (package pressure).
// Reads: pods' resources.
// Never: creates containers' cgroups (the runtime does), kills a process outside of a pod's or
// child process's cgroup that is being removed.
package cgroups
