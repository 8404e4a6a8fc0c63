package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
	"berth/internal/storage/csi/csitest"
)

func TestUseOfCSIVolume(t *testing.T) {
	d := newDriven(t, func(c *csitest.Driver) { c.Conditions = true })
	d.claim("c")
	d.objects.drivers[driverName].Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	var events []string
	d.host.recorder = &recorder{pod: func(_ *v1.Pod, eventtype, reason, message string) {
		messagestest.SawEvent(reason, message)
		events = append(events, eventtype+" "+reason+": "+message)
	}}
	p := d.user("one", "c")
	inline := v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}}
	p.Spec.Volumes = append(p.Spec.Volumes, inline)
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "own", MountPath: "/own"})
	if _, err := d.Use(t.Context(), p, "own"); err == nil {
		t.Error("of a volume that is not mounted something is known")
	}
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	want := Use{Capacity: 4 << 20, Available: 3 << 20, Used: 1 << 20, Inodes: 10, InodesFree: 7, InodesUsed: 3, Source: driverName}
	expect := func(volume string) {
		t.Helper()
		got, err := d.Use(t.Context(), p, volume)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", volume, err, diff)
		}
	}
	expect("v")
	expect("own")
	calls := d.allCalls()
	last := calls[len(calls)-2:]
	paths := []string{publishPath(filepath.Join(d.host.root, "pods/one"), "pv-c"), publishPath(filepath.Join(d.host.root, "pods/one"), "own")}
	if diff := cmp.Diff(paths, []string{last[0].Target, last[1].Target}); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}

	// With the feature, drivers are listened to.
	d.csi().config.Health = true
	want.Abnormal = ptr.To(false)
	expect("v")
	if err := errors.Join(os.Mkdir(d.driver.Dir+"/condition", 0o700), os.WriteFile(d.driver.Dir+"/condition/handle-c", []byte("it smells burnt"), 0o600)); err != nil {
		t.Fatal(err)
	}
	want.Abnormal = ptr.To(true)
	expect("v")
	if diff := cmp.Diff([]string{"Warning VolumeConditionAbnormal: Volume pv-c: it smells burnt"}, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	// A driver that fails, hangs, or is gone.
	for _, fault := range []string{csitest.Fail, csitest.Hang} {
		if err := csitest.Break(d.driver.Dir, "NodeGetVolumeStats", fault, codes.Internal); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if fault == csitest.Hang {
			cancel()
		}
		if _, err := d.Use(ctx, p, "v"); err == nil {
			t.Errorf("%s: it is not told", fault)
		}
		cancel()
	}
	d.drivers.DeregisterPlugin(driverName, filepath.Join(d.driver.Dir, "csi.sock"))
	if _, err := d.Use(t.Context(), p, "v"); err == nil {
		t.Error("something is known without the driver")
	}
}

func TestUseOfVolumes(t *testing.T) {
	m, _, s := newStorage(t)
	dir := t.TempDir()
	s.bind("local", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}})
	s.bind("host", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}})
	s.bind("nfs", nfsSource())
	p := podWith(claimVolume("local", "local"), claimVolume("host", "host"), claimVolume("nfs", "nfs"), emptyDir("empty", ""),
		v1.Volume{Name: "share", VolumeSource: v1.VolumeSource{NFS: nfsSource().NFS}})
	if _, err := m.Use(t.Context(), p, "local"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("before the claim was read: %v", err)
	}
	if _, err := m.setup(t, p); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"local", "nfs", "share"} {
		got, err := m.Use(t.Context(), p, name)
		if err != nil || got.Capacity == 0 || got.Available > got.Capacity || got.Used > got.Capacity || got.Abnormal != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{"host", "empty", "unknown"} {
		if got, err := m.Use(t.Context(), p, name); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	disk := filepath.Join(m.host.root, "plugins/disk")
	if err := os.MkdirAll(filepath.Dir(disk), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, make([]byte, 12345), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := m.disks().use(disk); err != nil || got != (Use{Capacity: 12345, Source: "block"}) {
		t.Errorf("a disk: %+v, %v", got, err)
	}
}

func TestComputeUse(t *testing.T) {
	got := computeUse([]*csiapi.VolumeUsage{
		{Unit: csiapi.VolumeUsage_UNKNOWN, Total: 1}, {Unit: csiapi.VolumeUsage_BYTES, Total: 5, Used: -1}, {Unit: csiapi.VolumeUsage_INODES, Available: 2},
	})
	if want := (Use{Capacity: 5, InodesFree: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
