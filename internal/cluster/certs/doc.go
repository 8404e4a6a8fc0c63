// Package certs maintains the certificates of a node: its client certificate at the API server, the
// serving certificate of its HTTPS port, and the CAs of the clients of that port.
//
//	handshake ──► files changed? ──► read them ──► the certificate, or the last valid one
//	Rotation ──► missing or due? ──► request ──► signed ──► Store ──► current
//
// Files are checked when they are used, so that a replaced certificate is used from the next
// handshake on, without a timer.
//
// Owns: the pairs in the certificate directory, and the kubeconfig that bootstrapping writes.
// Reads: the certificate, key and CA files of the configuration, kubeconfigs, certificates that the
// API server signs.
// Never: replaces a valid certificate because files cannot be read; terminates the agent because it
// has no certificate.
package certs
