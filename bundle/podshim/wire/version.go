//go:build !podshimnext

package wire

// Version is the newest version; see Oldest.
const Version = newest
