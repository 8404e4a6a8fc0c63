// Selection prints the end-to-end tests to run for a change: those that always run, and those of
// the packages that the change touches or that import one of these, nearest first, until a time
// budget is spent.
//
// Owns: which files of test/e2e belong to which packages, the choice among their tests.
// Reads: git's list of changed files, the import graph of `go list`, durations.txt.
// Never: runs a test.
package main
