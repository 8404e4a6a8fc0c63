//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// disk is a file system of its own below the node's root directory.
type disk struct {
	n     *node
	image string
	dir   string // where it is mounted
}

// newRootDisk puts the root directory on an ext4 of this many MiB, which is swept with it; options
// are mkfs.ext4's. Agents that are started evict no pod for want of room there, unless a flag says
// so.
func (n *node) newRootDisk(size int64, options ...string) *disk {
	n.t.Helper()
	n.flags = append(n.flags, "--eviction-hard", "nodefs.available<0%,nodefs.inodesFree<0%,imagefs.available<0%,imagefs.inodesFree<0%")
	d := &disk{n, filepath.Join(n.place.Dir, "root.img"), n.place.Root}
	must(n.t, os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, size<<20), os.Mkdir(n.place.Root, 0o750))
	d.run("mkfs.ext4", append(options, "-q", d.image)...)
	d.mount()
	return d
}

func (d *disk) run(name string, args ...string) {
	d.n.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.n.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

func (d *disk) mount() { d.run("mount", "-o", "loop", d.image, d.n.place.Root) }

// fail makes the file system read-only the way an error does that the kernel finds in it (ext4(5),
// abort): also for who has files open.
func (d *disk) fail() { d.run("mount", "-o", "remount,abort", d.n.place.Root) }

// fill takes all the room that is left, and returns what gives it back.
func (d *disk) fill() (empty func()) {
	d.n.t.Helper()
	name := filepath.Join(d.dir, "filler")
	f, err := os.Create(name)
	must(d.n.t, err)
	defer f.Close()
	for size := 1 << 20; size >= 1; size /= 2 { // the last bytes too
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			d.n.t.Fatal(err)
		}
	}
	return func() { must(d.n.t, os.Remove(name)) }
}

// On a full root directory the next agent takes over runtime and pods as they are. A pod that is to
// start waits with the reason, one that is to go goes, and all is well when there is room again.
func TestFullRoot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.newRootDisk(256)
	n.write("web.yaml", manifest("web", "serve"))
	n.write("gone.yaml", manifest("gone", "serve"))
	a := n.start()
	before := n.awaitReady("web", "gone")
	runtime := n.containerd()
	empty := d.fill()
	a.kill()
	n.start()
	now := n.awaitReady("web")
	if was, is := containerID(before.named("web"), "main"), containerID(now.named("web"), "main"); was != is {
		t.Errorf("the pod's container was %s, and is %s", was, is)
	}
	if is := n.containerd(); is != runtime {
		t.Errorf("containerd is process %d, and was %d", is, runtime)
	}

	n.write("late.yaml", manifest("late", "serve"))
	until(t, "the reason why the pod does not start", func() bool {
		return strings.Contains(n.command(n.ctx, "explain", "--all", "late").out, unix.ENOSPC.Error())
	})
	n.remove("gone.yaml")
	n.awaitGone(before.named("gone").UID)
	empty()
	n.awaitReady("web", "late")
}

// An agent does not start on a read-only root directory, and leaves the pods as they are. berth
// stop --all ends them all the same, and the next agent that can write starts them anew.
func TestReadOnlyRoot(t *testing.T) {
	n := newNode(t)
	d := n.newRootDisk(256)
	n.write("web.yaml", manifest("web", "serve"))
	a := n.start()
	pid := n.pid(containerID(n.awaitReady("web").named("web"), "main"))
	a.kill()
	d.fail()

	again := n.launch()
	if code := again.wait(); code == 0 {
		t.Error("an agent runs on a read-only root directory")
	}
	wantText(t, "the agent", again.said(), "root directory "+n.place.Root+": the file system is read-only")
	if !exists(t, fmt.Sprintf("/proc/%d", pid)) {
		t.Error("the pod has ended with the agent's try")
	}

	stopped := n.command(n.ctx, "stop", "--all")
	if stopped.code != 0 {
		t.Errorf("berth stop --all: %v", stopped)
	}
	wantText(t, "berth stop --all", stopped.out, "have ended")
	wantText(t, "berth stop --all", stopped.errOut, n.place.Root, "read-only", "without a grace period")
	if left, err := n.place.processes(); err != nil || len(left) > 0 {
		t.Errorf("processes %v are left, error %v", left, err)
	}
	must(t, unix.Unmount(n.place.Root, 0)) // nobody holds it
	until(t, "the disk to be let go of by mount namespaces that are just being made", func() bool {
		out, err := exec.Command("losetup", "--associated", d.image).Output()
		return err == nil && len(out) == 0
	})

	d.mount()
	n.start()
	n.awaitReady("web")
}
