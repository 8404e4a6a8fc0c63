// Command containerd-shim-runc-v2 is containerd's shim for runc, on one processor.
//
// A node has one shim for each pod, and each of them collects its garbage every 30 seconds, whether there is any or not. On the four
// processors that containerd gives it, the threads wake each other up in that, for several times of what the collection itself takes:
// at rest it is all that shims do.
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
