// Package nodeauthz maps requests of the node API to authorization attributes.
//
// Owns: which subresource of the Node each path needs.
// Reads: nothing.
// Never: authorizes.
package nodeauthz
