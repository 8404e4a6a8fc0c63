// Package manifest turns the bytes of a manifest into complete objects, and into problems that its
// author can mend.
//
//	bytes ──► documents ──► object ──► decode into its type ──► identity, defaults, validation ──► Decoded
//
// A document that is refused does not touch the others. Each object carries its document in
// canonical form, from which Restore makes the same object again.
//
// Owns: static pod identity; which kinds and references manifests may have under either name rule;
// Problem.
// Reads: nothing.
// Never: reads a file or a URL, knows what was there before.
package manifest
