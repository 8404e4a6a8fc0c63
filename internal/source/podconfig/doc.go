// Package podconfig (PodConfig) holds the desired pods: sources hand over their sets, and one merge
// computes the changes.
//
//	files ──────► file source ─┐
//	URLs ───────► HTTP source ─┼─ complete set ─► handOver ─► Take: mergeSource ─► syncLoop
//	API server ─► API source ──┘
//
// Each source hands over its complete set whenever it changes. Take computes the operations from
// the previously delivered and the newest set: a source never waits for the loop, nothing is
// queued, and a pod that is added and removed between two calls of Take is never delivered.
//
// In run mode, manifests also define ConfigMaps, Secrets and claims. Take publishes them just
// before the pods.
//
// A manifest that becomes invalid or unreadable keeps its last good objects; they are also
// persisted, so that this holds across restarts. Only a successful read removes a pod: a deleted
// file, or a valid response without the pod.
//
// Owns: the desired pods of all sources, the local objects of run mode, the last good version of
// each manifest.
// Reads: files, directories and URLs of manifests; their persisted versions; a watch of the API
// server's pods of this node.
// Never: changes a pod that was handed out, calls the runtime, blocks a source on the loop or the
// loop on a source.
package podconfig
