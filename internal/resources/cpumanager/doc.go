// Package cpumanager assigns exclusive CPUs to containers (cpuManager; Kubernetes documentation,
// "Control CPU Management Policies on the Node"). With the policy "static" each container of a
// Guaranteed pod that requests whole CPUs gets exclusive CPUs; all other containers run on the
// remaining, shared CPUs. With the policy "none" it sets nothing.
//
// Owns: the CPU assignment of containers, the file cpu_manager_state, the cpusets of running
// containers.
// Reads: the machine, pods, the runtime's status of pods.
// Never: decides on which NUMA nodes a container runs (topologymanager does), preempts pods.
package cpumanager
