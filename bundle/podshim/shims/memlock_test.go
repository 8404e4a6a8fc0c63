package shims

import (
	"errors"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

func memlock(t *testing.T) unix.Rlimit {
	t.Helper()
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		t.Fatal(err)
	}
	return l
}

// The limit of locked memory is restored after the library has changed it, and no process that is
// started meanwhile inherits another one.
func TestDeviceRulesKeepTheMemlockLimit(t *testing.T) {
	before := memlock(t)
	failure := errors.New("failure")
	set := preservingMemlock(func(string, *cgroups.Resources) error {
		other := unix.Rlimit{Cur: before.Cur / 2, Max: before.Max}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &other); err != nil {
			t.Error(err)
		}
		if memlock(t) == before {
			t.Error("the limit is not another one meanwhile")
		}
		if syscall.ForkLock.TryLock() {
			t.Error("a process can be started meanwhile")
			syscall.ForkLock.Unlock()
		}
		return failure
	})
	if err := set("", nil); !errors.Is(err, failure) {
		t.Errorf("error %v, want %v", err, failure)
	}
	if after := memlock(t); after != before {
		t.Errorf("the limit is %v, was %v", after, before)
	}
	if !syscall.ForkLock.TryLock() {
		t.Fatal("no process can be started any more")
	}
	syscall.ForkLock.Unlock()
}
