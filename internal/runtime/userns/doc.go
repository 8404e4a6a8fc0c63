// Package userns gives each pod that has a user namespace a range of the host's user and group ids
// for itself (KEP-127).
//
// Owns: the ranges in use, and the file "userns" in each pod's folder, which tells a later agent of
// them.
// Reads: /etc/subuid and /etc/subgid by getsubids(1).
// Never: gives an id to two pods at once, or one of the host's own users.
package userns
