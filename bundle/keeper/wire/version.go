//go:build !keepernext

package wire

// Version is the last version; see Oldest.
const Version = newest
