//go:build !controlplane

package main

// programs are none: without the tag nothing of Kubernetes is linked, which takes minutes to
// compile. Tests and linters do without.
var programs map[string]func() int
