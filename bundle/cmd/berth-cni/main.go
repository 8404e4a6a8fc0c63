// Command berth-cni is a CNI plugin: a bridge with address management, host ports and bandwidth
// limits in one program.
package main

import (
	"runtime/debug"

	"berth/bundle/cni"
)

func main() {
	debug.SetGCPercent(-1) // it exits before a collection would pay off
	cni.Main()
}
