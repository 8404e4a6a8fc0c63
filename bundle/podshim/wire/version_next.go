//go:build podshimnext

package wire

// Version is that of a future release, for the upgrade test.
const Version = newest + 1
