// Package validation validates pods and local objects. Errors have the field paths that kubectl
// shows.
//
// The rules are those of the API server on create, for a Pod with spec.nodeName set, as far as the
// API reference specifies them. They are compared with the results of a real API server (`make
// goldens`); docs/validation.md lists the differences. Pods of the API server are only checked for
// their identity.
//
// Owns: the rules.
// Reads: nothing.
// Never: changes an object, reports a value of a Secret.
package validation
