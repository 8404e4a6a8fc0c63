//go:build keepernext

package wire

// Version is that of a release to come, for the test of an upgrade.
const Version = newest + 1
