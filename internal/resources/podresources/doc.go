// Package podresources serves the pod-resources API: it tells monitoring agents, network plugins
// and the like of this node which devices, CPUs, memory and claims each container has (KEP-606,
// KEP-2403, KEP-3695; k8s.io/kubelet, podresources/v1 and v1alpha1).
//
// Owns: the socket <root>/pod-resources/kubelet.sock; the connections and calls that it takes at a
// time.
// Reads: the pods of the node; what the managers gave to their containers, and what they could
// give.
// Never: changes what a container has, asks a plugin or a driver, keeps an answer.
package podresources
