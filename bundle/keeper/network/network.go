// Package network is how containerd runs network plugins. The build of the bundle has containerd's
// library for that (go-cni) call it (BUNDLE_CHANGES of bundle.mk).
package network

import (
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"

	"berth/bundle/cni"
)

// Exec runs the bundle's own plugin in this process, if that is the bundle's containerd, and others
// as programs.
func Exec(programs invoke.Exec) invoke.Exec {
	self, err := os.Executable()
	if err != nil {
		return programs
	}
	return cni.Exec{Exec: programs, Own: filepath.Join(filepath.Dir(self), "..", "cni", "berth-cni")}
}
