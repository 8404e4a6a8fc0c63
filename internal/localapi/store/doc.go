// Package store keeps the objects of the local API: bytes under keys, each with the revision of its
// last change, in one file of bbolt.
//
// Owns: the file, the copy and the state beside it, revisions, and the history of the last changes.
// Reads: nothing.
// Never: looks into a value, answers a write before it is on the disk, does anything by itself but
// try again what could not be written.
//
// A revision counts the changes of all objects. Write changes one object if its revision is the one
// that the caller has seen. Those who write at the same time share one transaction and its fsync.
//
// The history is in memory and bounded. Since waits for what comes after a revision, and a watcher
// is nothing but the revision that it has come to: one that is slow holds up nobody, and is told
// ErrCompacted when the history no longer reaches back to it. After a start the history is empty,
// so a watch from before goes on only from the newest revision, as with kube-apiserver. A list can
// show any revision that the history reaches back to.
//
// What SIGKILL or a loss of power leaves is the file after some commit: bbolt writes pages that
// nothing refers to, then the page that refers to them, with a checksum. A write that fails, as on
// a full disk, changes nothing, and the store goes on.
package store
