// Package podproxy answers the calls of the local API that reach into a pod: log, exec, attach and
// portforward. They are the same calls of the node API, which the API server makes of a kubelet.
//
// Owns: nothing.
// Reads: the pod, out of the store.
// Never: speaks to the runtime.
package podproxy
