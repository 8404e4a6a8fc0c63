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

// persistent is a volume of the source and a claim of the same name that is bound to it.
func persistent(name, source string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {name: %[1]s}
  %[2]s
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
`, name, source)
}

// Claims of manifests are mounted from this machine, for the pod's group, over a kill of the agent,
// until the pod has ended; then nothing is left but the data. A mount that somebody is in is told
// of, with who it is.
func TestClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	disk, shared := filepath.Join(n.place.Dir, "disk"), filepath.Join(n.place.Dir, "shared-dir")
	must(t, os.MkdirAll(filepath.Join(disk, "sub"), 0o700), os.Mkdir(shared, 0o755), os.WriteFile(filepath.Join(disk, "sub/file"), []byte("kept"), 0o600))
	n.write("volumes.yaml", persistent("disk", "local: {path: "+disk+"}\n  mountOptions: [noexec]")+persistent("shared", "hostPath: {path: "+shared+"}"))
	n.write("user.yaml", strings.Replace(manifest("user", "serve"), "  containers:", `  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: d, persistentVolumeClaim: {claimName: disk}}
  - {name: s, persistentVolumeClaim: {claimName: shared, readOnly: true}}
  containers:`, 1)+"    volumeMounts: [{name: d, mountPath: /d}, {name: s, mountPath: /s}]\n")
	a := n.start()
	p := n.awaitReady("user").named("user")
	pid := n.pid(containerID(p, "main"))
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/d/sub/file", pid)); err != nil || string(b) != "kept" {
		t.Errorf("the container sees %q, %v", b, err)
	}
	if o := mountOptions(t, pid, "/s"); !isReadOnly(o) {
		t.Errorf("the read-only claim is mounted with %q", o)
	}
	mounted := filepath.Join(n.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~local-volume/disk")
	if o := mountOptions(t, os.Getpid(), mounted); !strings.Contains(","+o+",", ",noexec,") {
		t.Errorf("the local volume is mounted with %q, want its mount options", o)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(disk, "sub/file"), &st); err != nil || st.Gid != 4242 || st.Mode&0o7777 != 0o660 {
		t.Errorf("the file has group %d, mode %o, %v; want the fsGroup's", st.Gid, st.Mode&0o7777, err)
	}

	// The next agent takes down what an earlier one made. Somebody is in it meanwhile.
	a.kill()
	n.start()
	n.awaitReady("user")
	f, err := os.Open(filepath.Join(mounted, "sub"))
	must(t, err)
	defer f.Close()
	n.remove("user.yaml")
	until(t, "the holder of the mount to be told", func() bool {
		return strings.Contains(n.command(n.ctx, "explain", "--all", "user").out, fmt.Sprintf("held by process %d (", os.Getpid()))
	})
	must(t, f.Close())
	n.awaitGone(p.UID)
	if _, err := os.Lstat(filepath.Join(n.place.Root, "pods", string(p.UID))); !os.IsNotExist(err) {
		t.Errorf("the pod's folder is left: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(disk, "sub/file")); err != nil || string(b) != "kept" {
		t.Errorf("the data: %q, %v", b, err)
	}
}

// loopDisk makes a disk of 16 MiB over a file. It goes with the test.
func (n *node) loopDisk() (image, disk string) {
	n.t.Helper()
	image = filepath.Join(n.place.Dir, "disk.img")
	must(n.t, os.WriteFile(image, nil, 0o600), os.Truncate(image, 16<<20))
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		n.t.Fatalf("losetup: %v: %s", err, out)
	}
	disk = strings.TrimSpace(string(out))
	n.t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", disk).CombinedOutput(); err != nil {
			n.t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return image, disk
}

// diskUser is the manifest of a pod of this group that has the claim named disk at /d.
func diskUser(name string, group int) string {
	return strings.Replace(manifest(name, "serve"), "  containers:", fmt.Sprintf(`  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: %d}
  volumes: [{name: d, persistentVolumeClaim: {claimName: disk}}]
  containers:`, group), 1) + "    volumeMounts: [{name: d, mountPath: /d}]\n"
}

// A disk without a filesystem gets one, for the group of the first pod; the next pod finds the
// data, and a pod of another group is told.
func TestClaimOfADisk(t *testing.T) {
	n := newNode(t)
	_, disk := n.loopDisk()
	n.write("volumes.yaml", persistent("disk", "local: {path: "+disk+"}"))
	n.write("first.yaml", diskUser("first", 4242))
	n.start()
	first := n.awaitReady("first").named("first")
	inside := fmt.Sprintf("/proc/%d/root/d", n.pid(containerID(first, "main")))
	var st unix.Stat_t
	if err := unix.Stat(inside, &st); err != nil || st.Gid != 4242 {
		t.Errorf("the volume has group %d, %v", st.Gid, err)
	}
	must(t, os.WriteFile(filepath.Join(inside, "file"), []byte("kept"), 0o600))
	n.write("second.yaml", diskUser("second", 4243))
	second := n.awaitReady("second").named("second")
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/d/file", n.pid(containerID(second, "main")))); err != nil || string(b) != "kept" {
		t.Errorf("the second pod sees %q, %v", b, err)
	}
	wantText(t, "explain", n.berth("explain", "--all", "second"), "AlreadyMountedVolume", "The requested fsGroup is 4243, but the volume disk has GID 4242")
	n.remove("first.yaml")
	n.remove("second.yaml")
	n.awaitGone(first.UID)
	n.awaitGone(second.UID)
}
