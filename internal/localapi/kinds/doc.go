// Package kinds says which kinds of objects the local API has, by which fields they are selected,
// and what a request asks of which.
//
// Owns: the table of kinds, the scheme of their types.
// Reads: the path, the query and the method of requests.
// Never: answers a request, reads a body.
package kinds
