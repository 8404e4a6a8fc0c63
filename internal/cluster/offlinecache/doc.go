// Package offlinecache caches objects of the API server on disk, so that a node can start while the
// server is unavailable: the pods that are bound to the node, and the objects that they refer to.
// API and PodWatch wrap the client of the API server. They cache its answers, and serve cached
// answers after a start while the server is unavailable. After its first list of pods, they serve
// only answers of the server.
//
//	waiting ──5 s without the first list──► serving cached objects ──the first list──► disabled
//	   └───────────────────────────the first list──────────────────────────────────────►
//
// Owns: <root>/kept: one file for each pod and object, durable and for root alone; those of Secrets
// and tokens encrypted, and the key.
// Reads: pods, for what they refer to; the API server, through kube.
// Never: writes on the road of a pod, lends anything after the API server's first list of pods,
// says that a set of pods is complete, keeps a Secret or a token unless it is told to.
package offlinecache
