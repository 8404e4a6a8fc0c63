// Package ctest tests the keeper's C: with plans, messages and output that are wrong, under the address
// and undefined behaviour sanitizers.
//
// Owns: nothing.
// Reads: c, which its tests build.
// Never: is linked into anything.
package ctest
