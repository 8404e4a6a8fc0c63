package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/crispec"
	"berth/internal/storage/csi/csitest"
)

// diskNumberHere makes whatever the fake mounter shows somewhere a disk: only root can make one.
func (d *driven) diskNumberHere() {
	d.loops().numberOf = func(path string, _ *unix.Stat_t) uint64 {
		if mounted, err := d.fake.IsMountPoint(path); err != nil || !mounted {
			return 0
		}
		return 7
	}
}

// newRaw returns a Manager whose driver gives the claim "c" as a disk.
func newRaw(t *testing.T, change func(*csitest.Driver)) *driven {
	t.Helper()
	d := newDriven(t, func(c *csitest.Driver) {
		c.Device = "/dev/of-driver"
		if change != nil {
			change(c)
		}
	})
	d.claim("c").Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	d.diskNumberHere()
	return d
}

// rawUser returns a pod that has the claim as a disk, and whose folder is made.
func (d *driven) rawUser(id string) *v1.Pod {
	d.t.Helper()
	p := d.user(id, "c")
	p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
	return p
}

func TestCSIDiskOfTwoPods(t *testing.T) {
	d := newRaw(t, nil)
	object := &d.objects.drivers[driverName].Spec
	object.PodInfoOnMount, object.TokenRequests = ptr.To(true), []storagev1.TokenRequest{{Audience: "a"}}
	first, second := d.rawUser("first"), d.rawUser("second")
	second.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	all := filepath.Join(d.host.root, "plugins/kubernetes.io/csi/volumeDevices")
	target := filepath.Join(all, "publish/pv-c/first")
	link := filepath.Join(d.host.root, "pods/first/volumeDevices/kubernetes.io~csi/pv-c")
	told := d.events()
	for range 2 {
		if got, err := d.setup(t, first); err != nil || got["v"] != (crispec.Volume{HostPath: link}) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	if diff := cmp.Diff(mapped("pv-c", all+"/pv-c/dev", filepath.Dir(link)), *told); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got, err := d.setup(t, second); err != nil || !got["v"].ReadOnly {
		t.Fatalf("got %+v, %v", got, err)
	}
	if to, err := os.Readlink(link); err != nil || to != target {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if mounted, err := d.fake.IsMountPoint(filepath.Join(all, "pv-c/dev/first")); err != nil || !mounted {
		t.Errorf("the pod's own bind mount is missing: %v", err)
	}
	if !d.held[all+"/pv-c/dev/first"] || !d.held[all+"/pv-c/dev/second"] {
		t.Errorf("held: %v", d.held)
	}
	how := csitest.Call{Volume: "handle-c", Staging: all + "/staging/pv-c", Block: true, Mode: "SINGLE_NODE_WRITER", Context: map[string]string{"size": "small"}}
	stage, publish := how, how
	stage.Method, publish.Method, publish.Target = "NodeStageVolume", "NodePublishVolume", target
	publish.Context = map[string]string{
		"size": "small", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": "first",
		"csi.storage.k8s.io/serviceAccount.name": "", "csi.storage.k8s.io/ephemeral": "false",
	}
	if diff := cmp.Diff([]csitest.Call{stage, publish}, d.allCalls()[:2]); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	want := `{"driverName":"csi.example.com","volumeHandle":"handle-c","specVolID":"pv-c","nodeName":"n","attachmentID":"csi-` + hash("handle-c"+driverName+"n") + `","volumeLifecycleMode":"Persistent"}`
	if b, err := os.ReadFile(all + "/pv-c/data/vol_data.json"); err != nil || string(b) != want {
		t.Errorf("data: %s, %v", b, err)
	}
	if got, err := d.Use(t.Context(), first, "v"); err != nil || got.Capacity != 4<<20 {
		t.Errorf("use: %+v, %v", got, err)
	}

	if err := d.Teardown(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll() // the second pod has it still
	err := d.CSI.unstageAlone(t.Context(), csiID{driverName, "handle-c"})
	messagestest.SawError(err)
	if want := fmt.Sprintf("the device %q is still referenced from other Pods [second]", all+"/pv-c"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	d.expectCalls("Stage", "Publish", "Publish", "GetVolumeStats", "Unpublish")
	if err := d.Teardown(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	if calls := d.calls(); strings.Join(calls[len(calls)-2:], " ") != "Unpublish Unstage" {
		t.Errorf("calls: %v", calls)
	}
	d.expectGone()
}

// Whatever step of a disk's life an agent is killed in, the next one either finishes it or takes it
// down.
func TestCSIDiskOverARestartInEachStep(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, fault := range []string{csitest.Fail, csitest.FailAfter} {
			for _, code := range []codes.Code{codes.Unavailable, codes.Internal} {
				for _, wanted := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s/%s/%t", method, fault, code, wanted), func(t *testing.T) {
						testDiskRestart(t, method, fault, code, wanted)
					})
				}
			}
		}
	}
}

func testDiskRestart(t *testing.T, method, fault string, code codes.Code, wanted bool) {
	d := newRaw(t, nil)
	p := d.rawUser("one")
	if err := csitest.Break(d.driver.Dir, method, fault, code); err != nil {
		t.Fatal(err)
	}
	_, failed := d.setup(t, p)
	if failed == nil {
		failed = d.Teardown(t.Context(), "one")
	}
	if failed == nil {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		failed = d.CSI.unstage(ctx, csiID{driverName, "handle-c"})
	}
	if failed == nil || csitest.Broken(d.driver.Dir, method) {
		t.Fatalf("nothing failed: %v", d.calls())
	}
	if setup, ok := errors.AsType[*Error](failed); ok && setup.Reason() != "FailedMapVolume" {
		t.Errorf("%s: %v", setup.Reason(), failed)
	}
	d.restart()
	d.diskNumberHere()
	if wanted {
		if got, err := d.setup(t, p); err != nil || got["v"].HostPath == "" {
			t.Fatalf("after %v: %v, %v", failed, got, err)
		}
		if n, err := d.disks().published(d.csi().dirs.disk("pv-c").target("one")); err != nil || n == 0 {
			t.Errorf("the disk is not there: %v", err)
		}
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectGone()
}

func TestCSIDiskWithoutStaging(t *testing.T) {
	d := newRaw(t, func(c *csitest.Driver) { c.Stages = false })
	p := d.rawUser("one")
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	if c := d.allCalls()[0]; c.Method != "NodePublishVolume" || c.Staging == "" {
		t.Errorf("got %+v", c)
	}
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectCalls("Publish", "Unpublish")
	d.expectGone()
}

// A disk of which nobody knows whose it is, and a file in the place of a disk.
func TestCSIDiskThatIsNone(t *testing.T) {
	d := newRaw(t, nil)
	p := d.rawUser("one")
	d.loops().numberOf = func(string, *unix.Stat_t) uint64 { return 0 }
	if _, err := d.setup(t, p); err == nil || !strings.Contains(err.Error(), `MapVolume.MapBlockVolume failed for volume "pv-c" : `) {
		t.Errorf("got %v", err)
	}
	d.diskNumberHere()
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.csi().dirs.disk("pv-c").data, "vol_data.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.restart()
	d.diskNumberHere()
	if err := d.Teardown(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	d.restart()
	d.expectGone()
}

func TestCSIDiskGrows(t *testing.T) {
	g := newGrowable(t, func(c *csitest.Driver) { c.Device = "/dev/of-driver" })
	g.pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	g.diskNumberHere()
	if _, err := g.setup(t, g.rawUser("one")); err != nil {
		t.Fatal(err)
	}
	g.growTo("2Gi")
	g.look(time.Hour)
	g.expectStatus("2Gi", "")
	calls := g.allCalls()
	want := csitest.Call{
		Method: "NodeExpandVolume", Volume: "handle-c", Staging: g.csi().dirs.disk("pv-c").staging, Target: g.csi().dirs.disk("pv-c").target("one"), Bytes: 2 << 30, Block: true, Mode: "SINGLE_NODE_WRITER",
	}
	if diff := cmp.Diff(want, calls[len(calls)-1]); diff != "" {
		t.Errorf("call (-want +got):\n%s", diff)
	}
}
