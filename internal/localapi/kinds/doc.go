// Package kinds defines the kinds of the local API and their selectable fields, and parses
// requests.
//
// Owns: the table of kinds, the scheme of their types.
// Reads: the path, the query and the method of requests.
// Never: serves a request, reads a body.
package kinds
