// Command containerd-shim-runc-v2 is containerd's shim for runc, on one processor.
//
// A node has one shim for each pod. Containerd gives each four processors, whose threads wake each
// other up in every collection of garbage, for several times of what the collection itself takes.
// How often a shim at rest collects is up to the build (bundle.mk).
package main

import (
	"context"
	"runtime"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	runtime.GOMAXPROCS(1)
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}
