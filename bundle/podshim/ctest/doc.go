// Package ctest tests the pod shim's C code with invalid plans, messages and output, under the
// address and undefined behavior sanitizers.
//
// Owns: nothing.
// Reads: c, which its tests build.
// Never: is linked into anything.
package ctest
