//go:build e2e

package e2e

import (
	"context"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodepkg "berth/internal/cluster/node"
)

// The kernel tells of an address that comes, of one that goes, and of a default route, in a network
// namespace of this test's own.
func TestAddressesAreWatched(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run("link", "set", "lo", "up")
	for _, change := range [][]string{
		{"address", "add", "192.0.2.7/24", "dev", "lo"},
		{"route", "add", "default", "dev", "lo"},
		{"address", "del", "192.0.2.7/24", "dev", "lo"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
		told := 0
		err := nodepkg.HostNetwork().Watch(ctx, func() {
			if told++; told == 1 { // the subscription
				run(change...)
			} else {
				cancel()
			}
		})
		if cancel(); told < 2 {
			t.Errorf("nothing was told of ip %v: %v", change, err)
		}
	}
}
