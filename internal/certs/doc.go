// Package certs holds the certificates of the kubelet's HTTPS port: the one that it shows, and the authorities whose clients it knows.
//
//	handshake ──► have the files changed? ──► read them ──► the certificate, or the last one that was good
//
// Files are looked at when they are used, so that a replaced certificate holds from the next handshake on, and no clock ticks.
//
// Owns: the self-signed pair kubelet.crt and kubelet.key in the certificate directory.
// Reads: the certificate, key and CA files of the configuration.
// Never: gives up a good certificate for files that cannot be read.
package certs
