//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Requests of ioctl(2) on a directory of a file system (linux/fs.h): who writes to it waits, in
// state D, until it is thawed.
const (
	freezeFS = 0xc0045877
	thawFS   = 0xc0045878
)

// newFreezer makes a file system whose writers can be made to wait where no signal ends them. It is
// thawed and gone when the test ends.
func (n *node) newFreezer() (dir string, freeze, thaw func() error) {
	n.t.Helper()
	dir = filepath.Join(n.place.Dir, "frozen")
	must(n.t, os.Mkdir(dir, 0o755))
	disk := n.newDisk("")
	for _, args := range [][]string{{"mkfs.ext4", "-q", disk}, {"mount", disk, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			n.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	f, err := os.Open(dir)
	must(n.t, err)
	do := func(request uint) func() error {
		return func() error { return unix.IoctlSetInt(int(f.Fd()), request, 0) }
	}
	n.t.Cleanup(func() {
		_ = do(thawFS)() // it is thawed, unless the test failed
		must(n.t, f.Close())
		until(n.t, "the file system to be unused", func() bool { return unix.Unmount(dir, 0) == nil })
	})
	return dir, do(freezeFS), do(thawFS)
}

// berth stop --all kills what it can, names what no signal ends, and fails; when that has ended, so
// has all.
func TestStopAllNamesWhatRunsOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared, freeze, thaw := n.newFreezer()
	const command = `    command: ["/usr/bin/sh", "-c", "while :; do echo beat > /shared/beat; /usr/bin/sleep 0.02; done"]` + "\n"
	n.write("stuck.yaml", hookedPod("stuck", shared, "  terminationGracePeriodSeconds: 1", hooked("main", "{}")+command))
	n.write("web.yaml", manifest("web", "serve"))
	a := n.start()
	now := n.awaitReady("stuck", "web")
	until(t, "the container to write", func() bool { return exists(t, filepath.Join(shared, "beat")) })
	pid := n.pid(containerID(now.named("stuck"), "main"))
	must(t, freeze())
	until(t, "the container to wait for the file system", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") D ")
	})
	stopped := n.command(n.ctx, "stop", "--all")
	if stopped.code != 1 || strings.Contains(stopped.out, "have ended") {
		t.Errorf("berth stop --all: %v", stopped)
	}
	wantText(t, "berth stop --all", stopped.errOut, "not all has ended", "pod default/stuck, container main: process ", "/usr/bin/sh -c while", `run "berth stop --all" again`)
	if strings.Contains(stopped.errOut, "default/web") {
		t.Errorf("berth stop --all names a pod that has ended: %v", stopped)
	}
	if code := a.wait(); code != 0 { // a service manager is not to start it again
		t.Errorf("the agent's exit code is %d, want 0:\n%s", code, a.said())
	}
	wantText(t, "the agent's output", a.said(), "in state D: it waits for a device or a file server", "The agent has ended; not all has ended:")

	must(t, thaw())
	wantText(t, "berth stop --all, again", n.berth("stop", "--all"), "have ended")
	if left, err := n.place.processes(); err != nil || len(left) > 0 {
		t.Errorf("processes %v are left, error %v", left, err)
	}
}
