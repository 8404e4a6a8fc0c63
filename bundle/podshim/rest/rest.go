// Package rest makes containerd release memory when no pod has started or stopped for a while: the
// garbage, and the pages of its program, most of which were read once.
//
// Owns: nothing.
// Reads: containerd's events.
// Never: releases memory while pods start or stop.
package rest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"golang.org/x/sys/unix"
)

// idleTime is the idle time after the last creation or removal.
const idleTime = 5 * time.Second

// eventFilter selects the events of operations that use memory. Exec events are excluded: a node
// with probes has them all the time.
const eventFilter = `topic~="^/(containers|images|snapshot)/"`

// Register registers this as a plugin with containerd.
func Register() {
	registry.Register(&plugin.Registration{
		Type: plugins.InternalPlugin, ID: "rest", Requires: []plugin.Type{plugins.EventPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			p, err := ic.GetByID(plugins.EventPlugin, "exchange")
			if err != nil {
				return nil, err
			}
			source, ok := p.(events.Subscriber)
			if !ok {
				return nil, fmt.Errorf("events come from a %T", p)
			}
			go follow(ic.Context, source, releaseMemory)
			return struct{}{}, nil
		},
	})
}

// follow calls release each time that containerd becomes idle, and after its start.
func follow(ctx context.Context, source events.Subscriber, release func()) {
	active, failed := source.Subscribe(ctx, eventFilter)
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-active:
			idle.Reset(idleTime)
		case <-idle.C:
			release()
		case err := <-failed:
			if ctx.Err() == nil {
				log.L.Errorf("podshim: memory is no longer released: %v", err)
			}
			return
		}
	}
}

// releaseMemory releases memory to the kernel. Pages of the program stay in the page cache, and are
// mapped again when they are used (madvise(2), MADV_DONTNEED on a file mapping).
func releaseMemory() {
	debug.FreeOSMemory()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if from, to, ok := parseMapping(lines.Text(), exe); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}

// parseMapping parses a line of /proc/PID/maps (proc(5)). ok is false unless it is a mapping of the
// program's file that is not writable.
func parseMapping(line, exe string) (from, to uintptr, ok bool) {
	var perms, offset, device, inode string
	if n, err := fmt.Sscanf(line, "%x-%x %s %s %s %s", &from, &to, &perms, &offset, &device, &inode); err != nil || n != 6 {
		return 0, 0, false
	}
	_, path, _ := strings.Cut(line, "/")
	return from, to, "/"+path == exe && from < to && !strings.Contains(perms, "w")
}
