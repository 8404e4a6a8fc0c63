// Package userns assigns each pod with a user namespace its own range of host user and group IDs
// (KEP-127).
//
// Owns: the ranges in use, and the file "userns" in each pod's directory, which persists them.
// Reads: /etc/subuid and /etc/subgid by getsubids(1).
// Never: assigns an ID to two pods at once, or one of the host's own users.
package userns
