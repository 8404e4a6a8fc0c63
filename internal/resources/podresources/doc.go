// Package podresources serves the pod-resources API: it reports the devices, CPUs, memory and
// claims of each container to clients on the node, such as monitoring agents and network plugins
// (KEP-606, KEP-2403, KEP-3695; k8s.io/kubelet, podresources/v1 and v1alpha1).
//
// Owns: the socket <root>/pod-resources/kubelet.sock; the limits of connections and calls.
// Reads: the pods of the node; allocations and allocatable resources of the managers.
// Never: changes an allocation, calls a plugin or a driver, caches a response.
package podresources
