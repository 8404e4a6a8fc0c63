// Package network defines how containerd runs CNI plugins. The build of the bundle makes
// containerd's CNI library (go-cni) call it (bundle/patches).
//
// Owns: nothing.
// Reads: the path of this process's program.
// Never: sets up a network; bundle/cni does.
package network

import (
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"

	"berth/bundle/cni"
)

// Exec runs the bundle's own plugin in this process if this is the bundle's containerd, and other
// plugins as programs.
func Exec(programs invoke.Exec) invoke.Exec {
	self, err := os.Executable()
	if err != nil {
		return programs
	}
	return cni.Exec{Exec: programs, Own: filepath.Join(filepath.Dir(self), "..", "cni", "berth-cni")}
}
