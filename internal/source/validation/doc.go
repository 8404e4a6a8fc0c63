// Package validation says what is wrong with pods and local objects, by the field paths that
// kubectl shows.
//
// The rules are those that the API server applies on create, to a Pod with spec.nodeName set, as
// far as the API reference states them. They are held against the verdicts of a real API server
// (`make goldens`); docs/validation.md lists the differences. Pods of the API server itself are
// checked for their identity alone.
//
// Owns: the rules.
// Reads: nothing.
// Never: changes an object, tells a value of a Secret.
package validation
