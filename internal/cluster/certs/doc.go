// Package certs holds the certificates of a node: the one by which the API server knows it, the one
// that its HTTPS port shows, and the authorities whose clients it knows.
//
//	handshake ──► have the files changed? ──► read them ──► the certificate, or the last one that was good
//	Rotation ──► is one missing, or due? ──► request ──► signed ──► Store ──► in force
//
// Files are looked at when they are used, so that a replaced certificate holds from the next
// handshake on, and no clock ticks for them.
//
// Owns: the pairs in the certificate directory, and a kubeconfig that a node gets by bootstrapping.
// Reads: the certificate, key and CA files of the configuration, kubeconfigs, what the API server
// signs.
// Never: gives up a good certificate for files that cannot be read; ends the agent because it has
// no certificate.
package certs
