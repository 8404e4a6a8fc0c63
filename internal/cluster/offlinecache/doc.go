// Package offlinecache caches objects of the API server on disk, so that a node can start while the
// server is unavailable: the pods that are bound to the node, and the objects that they refer to.
// API and PodWatch wrap the client of the API server. They cache its answers, and serve cached
// answers after a start while the server is unavailable. After its first list of pods, they serve
// only answers of the server.
//
//	waiting ──5 s without the first list──► serving cached objects ──the first list──► disabled
//	   └───────────────────────────the first list──────────────────────────────────────►
//
// Owns: <root>/kept: one file per pod and object, durable and readable by root only; records of
// Secrets and tokens encrypted, and the encryption key.
// Reads: pods, for their references; the API server, through kube.
// Never: writes on the path of a pod start, serves cached objects after the API server's first list
// of pods, reports a cached set of pods as complete, caches Secrets or tokens unless configured to.
package offlinecache
