// Package loopback is an HTTP transport to a handler in the same process, without a socket.
//
// Owns: one goroutine for each request in progress.
// Reads: nothing.
// Never: buffers a body.
package loopback
