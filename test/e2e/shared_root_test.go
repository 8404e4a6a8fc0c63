//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/storage/mounts"
)

// mountingPod mounts something in its volume, which the host and its other container are to see.
const mountingPod = `apiVersion: v1
kind: Pod
metadata: {name: mounting}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: data, emptyDir: {}}
  - {name: programs, hostPath: {path: /usr}}
  - {name: libraries, hostPath: {path: /usr/lib}}
  - {name: loader, hostPath: {path: /lib64}}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: programs, mountPath: /usr, readOnly: true}
    - {name: libraries, mountPath: /lib, readOnly: true}
    - {name: loader, mountPath: /lib64, readOnly: true}
    - {name: data, mountPath: /data, mountPropagation: Bidirectional}
  - name: follower
    image: berth.local/hello:1
    args: ["sleep"]
    volumeMounts:
    - {name: data, mountPath: /follows, mountPropagation: HostToContainer}
    - {name: data, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}
`

// mountedAt counts what is mounted on exactly this path.
func (p place) mountedAt(t *testing.T, path string) (n int) {
	t.Helper()
	all, err := p.mounts()
	must(t, err)
	for _, m := range all {
		if m == path {
			n++
		}
	}
	return n
}

// What a container mounts in its volume reaches the host and other containers, also where the
// host's own mounts are private, and no agent leaves more mounts than the one before it had.
func TestSharedRoot(t *testing.T) {
	n := newNode(t)
	n.write("mounting.yaml", mountingPod)
	a := n.start()
	p := n.awaitReady("mounting").named("mounting")
	data := filepath.Join(n.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/data")
	inner := filepath.Join(data, "inner")
	must(t, os.Mkdir(inner, 0o755))
	run := func(args ...string) {
		t.Helper()
		if got := n.execIn("", append([]string{"mounting", "-c", "main", "--", "/usr/bin/env", "PATH=/usr/bin:/usr/sbin"}, args...)...); got.code != 0 {
			t.Fatalf("%v: %v", args, got)
		}
	}
	run("mount", "-t", "tmpfs", "inner", "/data/inner")
	if n.place.mountedAt(t, inner) != 1 {
		t.Errorf("the host does not see what the container has mounted at %s", inner)
	}
	follower := n.pid(containerID(p, "follower"))
	if mountOptions(t, follower, "/follows/inner") == "" {
		t.Error("another container does not see what the first has mounted")
	}
	if got := mountOptions(t, follower, "/all"); !isReadOnly(got) {
		t.Errorf("the recursive read-only mount has the options %s", got)
	}

	before := n.place.mountedAt(t, n.place.Root)
	if before > 1 {
		t.Errorf("the root directory is mounted %d times", before)
	}
	for range 2 {
		a.kill()
		a = n.start()
		n.awaitReady("mounting")
	}
	if after := n.place.mountedAt(t, n.place.Root); after != before {
		t.Errorf("the root directory is mounted %d times after further starts, and was %d times", after, before)
	}
	run("umount", "/data/inner")
	if n.place.mountedAt(t, inner) != 0 {
		t.Error("what the container has unmounted is still mounted on the host")
	}
	n.berth("stop", "--all")
	a.wait()
	if left, err := n.place.mounts(); err != nil || len(left) > 0 {
		t.Errorf("after berth stop --all there are mounts: %v, %v", left, err)
	}

	a = n.start("--rm")
	n.awaitReady("mounting")
	a.end(unix.SIGTERM)
	if left, err := n.place.mounts(); err != nil || len(left) > 0 {
		t.Errorf("after berth run --rm there are mounts: %v, %v", left, err)
	}
}

// sharing is a directory that is to be shared, and what there is of it in the mount table.
type sharing struct {
	t    *testing.T
	dir  string
	base string
}

func newSharing(t *testing.T) *sharing {
	t.Helper()
	base := t.TempDir()
	s := &sharing{t: t, base: base, dir: filepath.Join(base, "root")}
	// The mount that all is in is private, as on a host without systemd.
	must(t, unix.Mount(base, base, "", unix.MS_BIND, ""), unix.Mount("", base, "", unix.MS_PRIVATE, ""), os.Mkdir(s.dir, 0o755))
	t.Cleanup(func() { must(t, unix.Unmount(base, unix.MNT_DETACH)) })
	return s
}

// table returns the mounts at and below the directory, as "path: shared" and the like, in order.
func (s *sharing) table() string {
	s.t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	must(s.t, err)
	var out []string
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		path, below := strings.CutPrefix(f[4], s.base+"/")
		if !below {
			continue
		}
		kind := "private"
		if slices.ContainsFunc(f[6:slices.Index(f, "-")], func(o string) bool { return strings.HasPrefix(o, "shared:") }) {
			kind = "shared"
		}
		out = append(out, path+" "+kind)
	}
	return strings.Join(out, ", ")
}

func (s *sharing) want(step, want string) {
	s.t.Helper()
	if got := s.table(); got != want {
		s.t.Errorf("%s: mounts %q, want %q", step, got, want)
	}
}

func TestShare(t *testing.T) {
	mark := func(s *sharing) string { return filepath.Join(s.base, "mark") }
	t.Run("once, and undone", func(t *testing.T) {
		s := newSharing(t)
		for i := range 3 {
			must(t, mounts.Share(s.dir, mark(s)))
			s.want(fmt.Sprintf("share %d", i), "root shared")
		}
		held, err := os.Create(filepath.Join(s.dir, "open")) // as the agent's own files are
		must(t, err)
		defer held.Close()
		for range 2 {
			must(t, mounts.Unshare(s.dir, mark(s)))
			s.want("unshare", "")
		}
		if exists(t, mark(s)) || !exists(t, filepath.Join(s.dir, "open")) {
			t.Error("the mark is left, or the directory is not what it was")
		}
	})
	t.Run("killed half way", func(t *testing.T) {
		s := newSharing(t)
		must(t, mounts.Share(s.dir, mark(s)), unix.Mount("", s.dir, "", unix.MS_PRIVATE, ""))
		must(t, mounts.Share(s.dir, mark(s)))
		s.want("share", "root shared")
		must(t, mounts.Unshare(s.dir, mark(s)))
		s.want("unshare", "")
	})
	t.Run("a mount point of its own", func(t *testing.T) {
		s := newSharing(t)
		must(t, unix.Mount("own", s.dir, "tmpfs", 0, ""), os.Mkdir(filepath.Join(s.dir, "volume"), 0o755))
		must(t, unix.Mount("volume", filepath.Join(s.dir, "volume"), "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(s.dir, unix.MNT_DETACH) })
		must(t, mounts.Share(s.dir, mark(s)))
		s.want("share", "root shared, root/volume shared")
		must(t, mounts.Unshare(s.dir, mark(s)))
		s.want("unshare", "root shared, root/volume shared")
	})
	t.Run("a disk that came after a reboot", func(t *testing.T) {
		s := newSharing(t)
		must(t, os.WriteFile(mark(s), nil, 0o600), unix.Mount("own", s.dir, "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(s.dir, unix.MNT_DETACH) })
		must(t, mounts.Share(s.dir, mark(s)), mounts.Unshare(s.dir, mark(s)))
		s.want("unshare", "root shared")
	})
	t.Run("in a shared mount", func(t *testing.T) {
		s := newSharing(t)
		must(t, unix.Mount("", s.base, "", unix.MS_SHARED, ""))
		must(t, mounts.Share(s.dir, mark(s)))
		s.want("share", "")
	})
	t.Run("with mounts that would be hidden", func(t *testing.T) {
		s := newSharing(t)
		volume := filepath.Join(s.dir, "volume")
		must(t, os.Mkdir(volume, 0o755), unix.Mount("volume", volume, "tmpfs", 0, ""))
		if err := mounts.Share(s.dir, mark(s)); err == nil || !strings.Contains(err.Error(), volume) {
			t.Errorf("error %v, want one that names %s", err, volume)
		}
		s.want("share", "root/volume private")
		must(t, unix.Unmount(volume, 0), mounts.Share(s.dir, mark(s)))
		s.want("share when it is gone", "root shared")
		must(t, unix.Mount("volume", volume, "tmpfs", 0, ""))
		if err := mounts.Unshare(s.dir, mark(s)); err == nil || !strings.Contains(err.Error(), volume) {
			t.Errorf("error %v, want one that names %s", err, volume)
		}
		s.want("unshare", "root shared, root/volume shared")
		must(t, unix.Unmount(volume, 0), mounts.Unshare(s.dir, mark(s)))
		s.want("unshare when it is gone", "")
	})
}
