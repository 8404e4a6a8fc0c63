// Package loopback carries HTTP requests to a handler of the same process, without a socket.
//
// Owns: one goroutine for each request under way.
// Reads: nothing.
// Never: buffers a body.
package loopback
