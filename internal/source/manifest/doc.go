// Package manifest decodes a manifest into complete objects, and into problems that its author can
// fix.
//
//	bytes ─► documents ─► object ─► decode into its type ─► identify, default, validate ─► Decoded
//
// A rejected document does not affect the others. Each object has its document in canonical form,
// from which Restore recreates it.
//
// Owns: static pod identity; the accepted kinds and references under either name rule; Problem.
// Reads: nothing.
// Never: reads a file or a URL, keeps state of earlier manifests.
package manifest
