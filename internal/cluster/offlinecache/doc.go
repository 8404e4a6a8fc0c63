// Package offlinecache is what a node keeps on disk of its API server, to start again without it: the pods
// that were bound to it last, and the objects that they refer to. API and PodWatch stand between
// the API server and those who ask it. They keep what it says, and hand over what was kept when an
// agent has started and the server is away; from its first list of pods on, only what it says.
//
//	waiting ──5 s without the first list──► lending what was kept ──the first list──► over
//	   └───────────────────────────the first list─────────────────────────────────────►
//
// Owns: <root>/kept: one file for each pod and object, durable and for root alone; those of Secrets
// and tokens encrypted, and the key.
// Reads: pods, for what they refer to; the API server, through kube.
// Never: writes on the road of a pod, lends anything after the API server's first list of pods,
// says that a set of pods is complete, keeps a Secret or a token unless it is told to.
package offlinecache
