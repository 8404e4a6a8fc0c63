// Package podproxy serves the pod subresources log, exec, attach and portforward of the local API,
// by the same calls of the node API that an API server makes to a kubelet.
//
// Owns: nothing.
// Reads: the pod, from the store.
// Never: calls the runtime.
package podproxy
