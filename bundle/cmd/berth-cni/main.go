// Command berth-cni is a network plugin: a bridge with addresses, host ports and limits of
// bandwidth, in one program.
package main

import (
	"runtime/debug"

	"berth/bundle/cni"
)

func main() {
	debug.SetGCPercent(-1) // it ends before there is garbage worth collecting
	cni.Main()
}
