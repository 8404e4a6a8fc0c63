//go:build e2e

package registry

// lacks are the clauses of the contract that the program does not keep, and why.
var lacks = map[string]string{}
