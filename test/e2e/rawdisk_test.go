//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/csi/csitest"
)

// newDisk is a disk of 16 MiB that begins with the text; it is gone when the test ends, which fails if somebody still holds it.
func (n *node) newDisk(text string) string {
	n.t.Helper()
	image := filepath.Join(n.place.Dir, "disk.img")
	must(n.t, os.WriteFile(image, []byte(text), 0o600), os.Truncate(image, 16<<20))
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		n.t.Fatalf("losetup: %v: %s", err, out)
	}
	disk := strings.TrimSpace(string(out))
	n.t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", disk).CombinedOutput(); err != nil {
			n.t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return disk
}

const rawPods = `apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {accessModes: [ReadWriteMany], capacity: {storage: 16Mi}, volumeMode: Block, local: {path: DISK}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 16Mi}}, volumeMode: Block, volumeName: disk}
`

const rawPod = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - {name: disk, persistentVolumeClaim: {claimName: disk, readOnly: READONLY}}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
    volumeDevices: [{name: disk, devicePath: /dev/data}]
`

// Containers are given a disk as it is, to write or only to read; an agent that was killed takes it away all the same.
func TestClaimOfARawDisk(t *testing.T) {
	n := newNode(t)
	disk := n.newDisk("begins")
	pod := func(name, readOnly string) string {
		return strings.NewReplacer("NAME", name, "READONLY", readOnly).Replace(rawPod)
	}
	n.write("disk.yaml", strings.ReplaceAll(rawPods, "DISK", disk))
	disks := filepath.Join(n.place.Root, "plugins/kubernetes.io~local-volume/volumeDevices")
	n.write("writer.yaml", pod("writer", "false"))
	n.write("reader.yaml", pod("reader", "true"))
	a := n.start()
	both := n.awaitReady("writer", "reader")
	if got := n.execIn("", "reader", "--", "/usr/bin/head", "-c", "6", "/dev/data").out; got != "begins" {
		t.Errorf("the reader sees %q", got)
	}
	dd := []string{"--", "/usr/bin/dd", "if=/usr/bin/dd", "of=/dev/data", "bs=4", "count=1", "seek=2", "conv=notrunc,fsync"}
	if got := n.execIn("", append([]string{"reader"}, dd...)...); got.code == 0 || !strings.Contains(got.errOut, "not permitted") {
		t.Errorf("the reader writes: %s", got)
	}
	if got := n.execIn("", append([]string{"writer"}, dd...)...); got.code != 0 {
		t.Errorf("the writer does not write: %s", got)
	}
	if got := n.execIn("", "reader", "--", "/usr/bin/head", "-c", "12", "/dev/data").out; !strings.HasSuffix(got, "\x7fELF") {
		t.Errorf("what was written is not there: %q", got)
	}

	n.wantHeld(disks, both.named("writer").UID, both.named("reader").UID)
	a.kill()
	n.start()
	if p := n.awaitReady("writer", "reader"); p.named("writer").UID != both.named("writer").UID {
		t.Error("the pods are others")
	}
	n.wantHeld(disks, both.named("writer").UID, both.named("reader").UID)
	n.remove("reader.yaml")
	n.awaitGone(both.named("reader").UID)
	n.wantHeld(disks, both.named("writer").UID)
	left, err := filepath.Glob(disks + "/*/*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != string(both.named("writer").UID) {
		t.Errorf("the disk is bound at %q, %v", left, err)
	}
	n.remove("writer.yaml")
	n.awaitGone(both.named("writer").UID)
	until(t, "nothing to be left of the disk", func() bool {
		left, err := filepath.Glob(disks + "/*")
		return err == nil && len(left) == 0
	})
	n.wantHeld(disks)
	if mounts := read(t, "/proc/self/mountinfo"); strings.Contains(mounts, disks) {
		t.Error("the disk is still mounted")
	}
}

// wantHeld checks that of the disks below dir those of the pods are held by one loop device each, and no others.
func (n *node) wantHeld(dir string, pods ...types.UID) {
	n.t.Helper()
	loops, err := loopsBelow(dir)
	must(n.t, err)
	var got []string
	for _, backing := range loops {
		got = append(got, filepath.Base(backing))
	}
	var want []string
	for _, uid := range pods {
		want = append(want, string(uid))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		n.t.Errorf("the disk is held for pods %v, want %v", got, want)
	}
}

// loopsBelow returns what loop devices are made of below dir, by device.
func loopsBelow(dir string) (map[string]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	loops := map[string]string{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if backing := strings.TrimSpace(string(b)); err == nil && strings.HasPrefix(backing, dir+"/") { // else it is gone meanwhile
			loops["/dev/"+filepath.Base(filepath.Dir(filepath.Dir(file)))] = backing
		}
	}
	return loops, nil
}

const drivenDisk = `apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {accessModes: [ReadWriteMany], capacity: {storage: 16Mi}, volumeMode: Block, csi: {driver: csi.example.com, volumeHandle: handle}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 16Mi}}, volumeMode: Block, volumeName: disk}
`

// Containers are given a disk of a CSI driver. Agent or driver are killed in each call that makes the disk or takes it down, before or after the call has
// had its effect: the next one finishes it, and takes everything down in the end.
func TestCSIDisk(t *testing.T) {
	n := newNode(t)
	d := n.newDriver()
	d.Device = n.newDisk("begins")
	n.write("disk.yaml", drivenDisk)
	d.start()
	a := n.start()
	strike := func(method, fault string) {
		d.awaitBroken(method)
		if fault == csitest.Die || fault == csitest.DieAfter {
			d.awaitEnd()
			d.start()
			return
		}
		a.kill()
		a = n.start()
	}
	disks := filepath.Join(n.place.Root, "plugins/kubernetes.io/csi/volumeDevices/disk/dev")
	for i, tc := range []struct{ making, fault, unmaking, otherFault string }{
		{"NodeStageVolume", csitest.HangAfter, "NodeUnpublishVolume", csitest.DieAfter},
		{"NodeStageVolume", csitest.DieAfter, "NodeUnstageVolume", csitest.HangAfter},
		{"NodePublishVolume", csitest.HangAfter, "NodeUnstageVolume", csitest.Die},
		{"NodePublishVolume", csitest.Die, "NodeUnpublishVolume", csitest.Hang},
	} {
		t.Logf("%s in %s, %s in %s", tc.fault, tc.making, tc.otherFault, tc.unmaking)
		name := fmt.Sprintf("user-%d", i) // another each time: a killed agent may not have noted yet that the last pod is gone
		d.breakNext(tc.making, tc.fault)
		n.write("user.yaml", strings.NewReplacer("NAME", name, "READONLY", "false").Replace(rawPod))
		strike(tc.making, tc.fault)
		p := n.awaitReady(name).named(name)
		if got := n.execIn("", name, "--", "/usr/bin/head", "-c", "6", "/dev/data").out; got != "begins" {
			t.Errorf("the pod sees %q", got)
		}
		n.wantHeld(disks, p.UID)
		d.breakNext(tc.unmaking, tc.otherFault)
		n.remove("user.yaml")
		strike(tc.unmaking, tc.otherFault)
		n.awaitGone(p.UID)
		d.awaitNothing()
		n.wantHeld(disks)
	}
}
