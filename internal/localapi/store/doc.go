// Package store persists the objects of the local API: bytes under keys, each with the revision of
// its last change, in one bbolt file.
//
// Owns: the file, its copy and state file, revisions, and the history of recent changes.
// Reads: nothing.
// Never: decodes a value, acknowledges a write before it is synced, runs in the background except
// to retry failed writes.
//
// A revision counts the changes of all objects. Write changes an object only if its revision is the
// one that the caller has read. Concurrent writers share one transaction and its fsync.
//
// The history is in memory and bounded. Since waits for the changes after a revision. A watcher is
// only the revision that it has reached: a slow one delays no other, and gets ErrCompacted once the
// history does not reach back to it. After a start the history is empty, so an earlier watch can
// continue only from the newest revision, as with kube-apiserver. A list can show any revision that
// the history reaches back to.
//
// SIGKILL or a power loss leaves the file as of some commit: bbolt writes unreferenced pages, then
// the page that refers to them, with a checksum. A write that fails, as on a full disk, changes
// nothing, and the store continues to work.
package store
