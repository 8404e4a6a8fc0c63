// Package journal is the record of decisions: what was decided for a pod, from which inputs, how
// long it took, and how its containers exited.
//
// Owns: one bounded ring of entries per pod, its start milestones and its containers' last exits;
// the files below <root>/journal that hold them (File).
// Reads: nothing; every component writes to it.
// Never: holds values of environment variables or secrets, blocks a writer, grows without bound,
// syncs a disk.
//
// The journal is in memory, in a form that is compact enough for every pod of a node. Its file is
// written asynchronously: new records are appended at most once a second, and the file is replaced
// by a snapshot when it has grown. Only root can read the file and the socket.
package journal
