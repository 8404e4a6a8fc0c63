// Package podconfig (PodConfig) knows the desired pods: sources hand over their sets, one merge
// delivers the changes.
//
//	files ──────► file source ─┐
//	URLs ───────► HTTP source ─┼─ complete set ──► handOver ──► Take: mergeSource ──► []pod.PodUpdate ──► syncLoop
//	API server ─► API source ──┘
//
// Each source hands over its complete set whenever it changes. The operations are computed when the
// loop takes them, from what it was last given and the newest set: a source never waits for the
// loop, nothing is queued, and a pod that came and went between two Takes is nothing.
//
// In run mode manifests define ConfigMaps, Secrets and claims, too. They take the same way, and are
// handed over by Take just before the pods.
//
// A manifest that turns bad, or that cannot be read, keeps the objects that it stood for; they are
// kept on disk too, so that this holds when the agent starts. Only a good reading ends a pod: a
// file that is gone, or a valid answer without it.
//
// Owns: the set of pods that the sources want, the local objects of run mode, the last good version
// of each manifest.
// Reads: files, folders and URLs of manifests; its kept versions of them; a watch of the API
// server's pods of this node.
// Never: changes a pod that was handed out, talks to the runtime, blocks a source on the loop or
// the loop on a source.
package podconfig
