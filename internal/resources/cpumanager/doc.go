// Package cpumanager gives containers CPUs that nobody else runs on (cpuManager; Kubernetes
// documentation, "Control CPU Management Policies on the Node"). With the policy "static" each
// container of a Guaranteed pod that asks for whole CPUs has them to itself; all others run on the
// CPUs that are left, which are shared. With the policy "none" it sets nothing.
//
// Owns: which CPUs a container has, the file cpu_manager_state, the CPUs of containers that run.
// Reads: the machine, pods, what the runtime shows of pods.
// Never: decides on which NUMA nodes a container is to lie (topologymanager does), makes room.
package cpumanager
