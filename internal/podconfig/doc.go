// Package podconfig (PodConfig) turns manifests into desired pods: sources read, default and validate them, one merge delivers them.
//
//	paths ──► file source ── complete set ──► handOver ──► Take: mergeSource(delivered, newest) ──► []pod.PodUpdate ──► syncLoop
//
// Each source hands over its complete set whenever it changes. The operations are computed when the loop takes them, from what it
// was last given and the newest set: a source never waits for the loop, nothing is queued, and a pod that came and went between
// two Takes is nothing.
//
// Owns: the set of pods that the sources want, the problems of manifests, static pod identity, defaults and validation.
// Reads: manifest files and folders; the API server's pods of this node, as they are handed over.
// Never: changes a pod that was handed out, talks to the runtime, blocks a source on the loop or the loop on a source.
package podconfig
