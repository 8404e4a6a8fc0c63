// Package validation says what is wrong with pods and local objects, by the field paths that kubectl shows.
//
// The rules are those that the API server applies to a Pod that is created with spec.nodeName set, and to the local objects of run
// mode, as far as the API reference states them. They are held against the verdicts of a real API server in testdata/apiserver
// (`make goldens`); docs/validation.md lists where they differ. Pods of the API server are checked only for what folders, files and
// records are named after.
//
// Owns: the rules.
// Reads: nothing.
// Never: changes an object, tells a value of a Secret.
package validation
