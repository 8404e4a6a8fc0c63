// Package cni is the CNI plugin of the embedded runtime. It implements the CNI specification 1.1
// and works with any runtime.
//
// Owns: a bridge, the pods' interfaces in it and their bandwidth limits; one nftables table for
// each network; address leases, in files in host-local's format.
//
// Reads: the input from the runtime. It stores nothing else and has no daemon: a call is a program
// (cmd/berth-cni), or is answered in the process of the embedded runtime (Exec).
//
// Never: adds rules for each pod. Masquerading is one rule for all ranges, a host port is an
// element of a map.
package cni
