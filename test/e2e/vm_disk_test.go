//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// When a disk has grown, which the persistent volume tells, its filesystem does at the start of the
// next pod, under the first. A mounted ext4 grows only for who has CAP_SYS_RESOURCE.
func TestVMFilesystemOfADiskGrows(t *testing.T) {
	n := newNode(t)
	image, disk := n.loopDisk()
	volume := persistent("disk", "local: {path: "+disk+"}")
	n.write("volumes.yaml", volume)
	n.write("first.yaml", diskUser("first", 4242))
	n.start()
	first := n.awaitReady("first").named("first")
	must(t, os.Truncate(image, 64<<20))
	if out, err := exec.Command("losetup", "--set-capacity", disk).CombinedOutput(); err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	n.write("volumes.yaml", strings.Replace(volume, "{storage: 1Gi}", "{storage: 2Gi}", 1))
	n.write("second.yaml", diskUser("second", 4242))
	second := n.awaitReady("second").named("second")
	for _, p := range []*v1.Pod{first, second} {
		var fs unix.Statfs_t
		if err := unix.Statfs(fmt.Sprintf("/proc/%d/root/d", n.pid(containerID(p, "main"))), &fs); err != nil || fs.Blocks*uint64(fs.Frsize) < 48<<20 {
			t.Errorf("pod %s sees a filesystem of %d blocks of %d bytes, %v", p.Name, fs.Blocks, fs.Frsize, err)
		}
	}
	n.remove("first.yaml")
	n.remove("second.yaml")
	n.awaitGone(first.UID)
	n.awaitGone(second.UID)
}
