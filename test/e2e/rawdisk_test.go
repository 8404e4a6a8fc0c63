//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/journal"
	"berth/internal/storage/csi/csitest"
	"berth/internal/storage/mounts"
	"berth/internal/storage/volumes"
)

// newDisk is a disk of 16 MiB that begins with the text; it is gone when the test ends, which fails
// if somebody still holds it.
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

// Containers are given a disk as it is, to write or only to read; an agent that was killed takes it
// away all the same.
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
	until(t, "the disk to be the writer's alone", func() bool { // a pod is shown no more when its containers are gone
		left, err := filepath.Glob(disks + "/*/*")
		return err == nil && len(left) == 1 && filepath.Base(left[0]) == string(both.named("writer").UID)
	})
	n.wantHeld(disks, both.named("writer").UID)
	n.remove("writer.yaml")
	n.awaitGone(both.named("writer").UID)
	until(t, "nothing to be left of the disk", func() bool {
		left, err := filepath.Glob(disks + "/*")
		return err == nil && len(left) == 0
	})
	n.wantHeld(disks)
	if mounts := readText(t, "/proc/self/mountinfo"); strings.Contains(mounts, disks) {
		t.Error("the disk is still mounted")
	}
}

// wantHeld checks that of the disks below dir those of the pods are held by one loop device each,
// and no others.
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

// Containers are given a disk of a CSI driver. Agent or driver are killed in each call that makes
// the disk or takes it down, before or after the call has had its effect: the next one finishes it,
// and takes everything down in the end.
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

// oneDisk is an API server in which every claim is bound to one disk of this machine.
type oneDisk struct{ path string }

func (o oneDisk) GetPersistentVolumeClaim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "claim"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "disk"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}, nil
}

func (o oneDisk) GetPersistentVolume(context.Context, string) (*v1.PersistentVolume, error) {
	block := v1.PersistentVolumeBlock
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: v1.PersistentVolumeSpec{
		VolumeMode: &block, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: "disk", UID: "claim"}, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: o.path}},
	}}, nil
}

func (o oneDisk) PatchPersistentVolumeClaimStatus(_ context.Context, _, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	return changed, nil
}

// A disk that somebody else holds for himself alone is given to a pod and taken from it all the
// same, and stays his. While somebody holds what a pod was given, it cannot be taken away, and who
// that is is told.
func TestRawDiskThatOthersHold(t *testing.T) {
	const uid = "11111111-2222-3333-4444-888888888888"
	n := newNode(t)
	disk := n.newDisk("begins")
	root, log := t.TempDir(), slog.New(slog.DiscardHandler)
	m, err := volumes.New(volumes.Config{Root: root, Mounter: mounts.New(root, t.TempDir()), Claims: oneDisk{disk}, Log: log, Journal: journal.New(log)})
	must(t, err, os.MkdirAll(filepath.Join(root, "pods", uid, "volumes"), 0o750))
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: uid},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c", VolumeDevices: []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}}},
			Volumes:    []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}}},
		},
	}
	disks := filepath.Join(root, "plugins/kubernetes.io~local-volume/volumeDevices")
	t.Cleanup(func() { // for a test that fails half way
		loops, _ := loopsBelow(disks)
		for loop := range loops {
			_ = exec.Command("losetup", "--detach", loop).Run()
		}
		_ = unix.Unmount(filepath.Join(disks, "disk", uid), unix.MNT_DETACH)
	})
	setup := func() {
		t.Helper()
		in, errs := m.Prepare(t.Context(), p)
		must(t, errs.Err())
		mounted, errs := m.Setup(t.Context(), p, in)
		must(t, errs.Err())
		if b := make([]byte, 6); mounted["v"].HostPath != "" {
			f, err := os.Open(mounted["v"].HostPath)
			must(t, err)
			if _, err := f.Read(b); err != nil || string(b) != "begins" {
				t.Errorf("the disk begins with %q, %v", b, err)
			}
			must(t, f.Close())
		}
		n.wantHeld(disks, uid)
	}
	wantGone := func() {
		t.Helper()
		n.wantHeld(disks)
		if left, err := filepath.Glob(disks + "/*"); err != nil || len(left) > 0 || strings.Contains(readText(t, "/proc/self/mountinfo"), disks) {
			t.Errorf("left: %v, %v", left, err)
		}
	}

	alone, err := unix.Open(disk, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	must(t, err)
	setup()
	must(t, m.Teardown(t.Context(), uid))
	wantGone()
	if fd, err := unix.Open(disk, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EBUSY) {
		unix.Close(fd)
		t.Errorf("the disk can be had alone by two: %v", err)
	}
	must(t, unix.Close(alone))

	setup()
	loops, err := loopsBelow(disks)
	must(t, err)
	for loop, bound := range loops {
		for _, path := range []string{loop, bound} {
			f, err := os.Open(path)
			must(t, err)
			holder := exec.Command("sleep", "infinity")
			holder.ExtraFiles = []*os.File{f}
			must(t, holder.Start(), f.Close())
			t.Cleanup(func() { _ = holder.Process.Kill() })
			err = m.Teardown(t.Context(), uid)
			if want := fmt.Sprintf("held by process %d (sleep)", holder.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("with %s open: %v, want %s", path, err, want)
			}
			must(t, holder.Process.Kill())
			_ = holder.Wait() // it was killed
			if path == loop {
				until(t, "the loop device to be free", func() bool {
					loops, err := loopsBelow(disks)
					return err == nil && len(loops) == 0
				})
				setup() // what is wanted again is made again
				if loops, err = loopsBelow(disks); err != nil || len(loops) != 1 {
					t.Fatalf("held by %v, %v", loops, err)
				}
			}
		}
	}
	must(t, m.Teardown(t.Context(), uid))
	wantGone()
}
