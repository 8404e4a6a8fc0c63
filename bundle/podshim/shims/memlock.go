package shims

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// The library removes this process's limit of locked memory when it loads device rules. That has no
// effect in runc, which exits. Here, all later shims would inherit it from containerd, and their
// containers from them.
func init() {
	cgroups.DevicesSetV2 = preservingMemlock(cgroups.DevicesSetV2)
}

// preservingMemlock restores the limit. No process is started meanwhile, because it would inherit
// the other limit.
func preservingMemlock(set func(string, *cgroups.Resources) error) func(string, *cgroups.Resources) error {
	var mu sync.Mutex
	return func(dir string, r *cgroups.Resources) (err error) {
		mu.Lock()
		defer mu.Unlock()
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		var before unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
			return fmt.Errorf("limit of locked memory: %w", err)
		}
		defer func() {
			if e := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before); e != nil && err == nil {
				err = fmt.Errorf("limit of locked memory: restore: %w", e)
			}
		}()
		return set(dir, r)
	}
}
