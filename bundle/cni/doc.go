// Package cni is the network plugin of the runtime that berth brings along: by the CNI
// specification 1.1, and for any runtime.
//
// Owns: a bridge, the interfaces of pods in it, limits of bandwidth on these; one table of nftables
// for each network; leases of addresses, in files as host-local has them.
//
// Reads: what the runtime gives it. It keeps nothing else, and no process of its own stays: a call is
// a program (cmd/berth-cni), or is answered in the process of a runtime that it belongs to (Exec).
//
// Never does: rules for each pod. Masquerading is one rule for all ranges, a host port is an element
// of a map.
package cni
