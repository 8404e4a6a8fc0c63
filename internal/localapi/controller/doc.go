// Package controller is the common part of the local API's controllers: a queue of objects to sync
// after changes, at deadlines, and again after failures.
//
//	store.Since ──► See: objects a change may concern ──► queue ──► Sync ──► writes
//	                                                        ▲
//	                              one deadline: something is due, or is retried
//
// Owns: the queue, and the retries of objects.
// Reads: the store.
// Never: polls, or depends on what Sync does for an object.
package controller
