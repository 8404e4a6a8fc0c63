// Package journal is the record of decisions: what was decided for a pod, from which inputs, how
// long it took, and how its containers ended.
//
// Owns: one bounded ring of entries per pod, its start marks and its containers' last ends; the
// files below <root>/journal that hold them (File).
// Reads: nothing; every component writes to it.
// Never: holds values of environment variables or secrets, blocks a writer, grows without bound,
// syncs a disk.
//
// The truth is in memory, in a form that is compact enough to be kept for every pod of a node. Its
// file is written behind: what was recorded is appended at most once a second, and the file is
// replaced by a snapshot when it has grown. A reader of the socket is root, and so is a reader of
// the file.
package journal
