//go:build e2e && vm

package e2e

import "testing"

// As TestPressureWatch, by memory.high.
func TestVMPressureWatch(t *testing.T) {
	needsUnified(t)
	checkPressureWatch(t)
}
