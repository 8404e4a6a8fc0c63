// Command containerd-shim-runc-v2 is containerd's shim for runc, limited to one processor.
//
// A node has one shim for each pod. containerd gives each four processors, whose threads wake each
// other in every garbage collection, at several times the cost of the collection itself. How often
// an idle shim collects is set by the build (bundle/patches).
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
