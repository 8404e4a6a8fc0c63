// Package controller is what the controllers of the local API share: the objects that are to be
// looked at, when they change, when they are due, and again after a failure.
//
//	store.Since ──► See: whom may that concern? ──► queue ──► Sync ──► writes
//	                                                  ▲
//	                     one deadline: something is due, or is tried again
//
// Owns: the queue, and which object is tried again when.
// Reads: the store.
// Never: polls, or knows what is done for an object.
package controller
