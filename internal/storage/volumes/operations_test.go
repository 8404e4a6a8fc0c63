package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/metrics/metricstest"
)

// ledger shows which operations a Manager counts.
type ledger struct {
	registry *prometheus.Registry
	counted  map[string]float64 // as last seen
}

// newLedger has the operations of a host counted anew.
func newLedger(h *host) *ledger {
	l := &ledger{registry: prometheus.NewRegistry()}
	h.metrics = newMetrics(l.registry)
	return l
}

// expect checks what was counted since the last time, in whatever order: the type of the volume,
// the operation, and whether it failed.
func (l *ledger) expect(t *testing.T, step string, want ...string) {
	t.Helper()
	expected, got := map[string]float64{}, map[string]float64{}
	for _, text := range want {
		what, status := strings.Fields(text), "success"
		if len(what) == 3 {
			status = "fail-unknown"
		}
		expected[fmt.Sprintf("storage_operation_duration_seconds_count{migrated=%q,operation_name=%q,status=%q,volume_plugin=%q}", "false", what[1], status, what[0])]++
	}
	all := metricstest.Values(t, l.registry)
	for name, value := range all {
		if strings.Contains(name, "_sum{") && value < 0 {
			t.Errorf("%s: an operation ended before it began: %s is %v", step, name, value)
		}
		if n := value - l.counted[name]; n > 0 && strings.Contains(name, "_count{") {
			got[name] = n
		}
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("%s: operations (-want +got):\n%s", step, diff)
	}
	l.counted = all
}

func TestOperations(t *testing.T) {
	m, mounts, s := newStorage(t)
	l := newLedger(m.host)
	s.bind("remote", nfsSource())
	s.bind("here", localSource(t.TempDir()))
	host := filepath.Join(t.TempDir(), "host")
	shown := v1.Volume{Name: "shown", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
		Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}}}
	p := podWith(emptyDir("disk", ""), emptyDir("memory", v1.StorageMediumMemory), shown, claimVolume("remote", "remote"), claimVolume("here", "here"),
		hostPath("host", host, v1.HostPathDirectory))
	if _, err := m.setup(t, p); err == nil {
		t.Fatal("the host has no such directory")
	}
	made := []string{
		"kubernetes.io/downward-api volume_mount", "kubernetes.io/empty-dir volume_mount", "kubernetes.io/empty-dir volume_mount",
		"kubernetes.io/local-volume volume_mount", "kubernetes.io/nfs volume_mount",
	}
	l.expect(t, "one fails", append(made, "kubernetes.io/host-path volume_mount failed")...)
	if err := os.Mkdir(host, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := m.setup(t, p); err != nil {
		t.Fatal(err)
	}
	l.expect(t, "all are there")

	secret := v1.Volume{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none"}}}
	if _, err := m.setup(t, podWith(secret)); err == nil {
		t.Fatal("there are no secrets here")
	}
	l.expect(t, "what it shows is missing", "kubernetes.io/secret volume_mount failed")
	if _, err := m.setup(t, podWith(claimVolume("v", "nobodys"))); err == nil {
		t.Fatal("there is no such claim")
	}
	l.expect(t, "the claim is missing")

	mounts.UnmountFunc = func(path string) error {
		if filepath.Base(path) == "memory" {
			return os.ErrPermission
		}
		return nil
	}
	if err := m.Teardown(t.Context(), uid); err == nil {
		t.Fatal("it was unmounted")
	}
	l.expect(t, "one stays mounted", "kubernetes.io/empty-dir volume_unmount failed")
	mounts.UnmountFunc = nil
	for _, step := range []string{"teardown", "another"} {
		if err := m.Teardown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
		var want []string
		if step == "teardown" {
			want = []string{
				"kubernetes.io/downward-api volume_unmount", "kubernetes.io/empty-dir volume_unmount", "kubernetes.io/empty-dir volume_unmount",
				"kubernetes.io/local-volume volume_unmount", "kubernetes.io/nfs volume_unmount",
			}
		}
		l.expect(t, step, want...)
	}
}

func TestOperationsOfADriver(t *testing.T) {
	const driver = "kubernetes.io/csi:" + driverName + " "
	for name, tc := range map[string]struct {
		d                         *driven
		user                      func(*driven) *v1.Pod
		mount, unmount, unmountIt string
	}{
		"files": {newDriven(t, nil), func(d *driven) *v1.Pod { d.claim("c"); return d.user("one", "c") }, "volume_mount", "volume_unmount", "unmount_device"},
		"disk":  {newRaw(t, nil), func(d *driven) *v1.Pod { return d.rawUser("one") }, "map_volume", "unmap_volume", "unmap_device"},
	} {
		t.Run(name, func(t *testing.T) {
			d := tc.d
			l := newLedger(d.host)
			p := tc.user(d)
			for range 2 {
				if _, err := d.setup(t, p); err != nil {
					t.Fatal(err)
				}
			}
			l.expect(t, "two passes", driver+tc.mount)
			d.drivers.DeregisterPlugin(driverName, filepath.Join(d.driver.Dir, "csi.sock"))
			if err := d.Teardown(t.Context(), "one"); err == nil {
				t.Fatal("it was taken down without its driver")
			}
			l.expect(t, "without its driver", driver+tc.unmount+" failed")
			d.register()
			if err := d.Teardown(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
			d.unstageAll()
			l.expect(t, "it goes", driver+tc.unmount, driver+tc.unmountIt)
			d.expectGone()
		})
	}
}

// What pods want and what there is on the disk are counted apart.
func TestTotals(t *testing.T) {
	m, _, s := newStorage(t)
	s.bind("here", localSource(t.TempDir()))
	p := podWith(emptyDir("disk", ""), emptyDir("other", ""), claimVolume("here", "here"))
	p.Spec.Volumes = append(p.Spec.Volumes, emptyDir("unused", ""))
	ended := podWith(emptyDir("disk", ""))
	ended.UID, ended.Status.Phase = "ended", v1.PodSucceeded
	r := prometheus.NewRegistry()
	r.MustRegister(Totals{Volumes: m, Wanted: func() []*v1.Pod { return []*v1.Pod{p, ended} }})
	expect := func(step string, want map[string]float64) {
		t.Helper()
		counts := map[string]float64{}
		for what, n := range want {
			plugin, state, _ := strings.Cut(what, " ")
			counts[fmt.Sprintf("volume_manager_total_volumes{plugin_name=%q,state=%q}", plugin, state+"_state_of_world")] = n
		}
		if diff := cmp.Diff(counts, metricstest.Values(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	expect("at first", map[string]float64{"kubernetes.io/empty-dir desired": 2})
	if _, err := m.setup(t, p); err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{
		"kubernetes.io/empty-dir desired": 2, "kubernetes.io/empty-dir actual": 2,
		"kubernetes.io/local-volume desired": 1, "kubernetes.io/local-volume actual": 1,
	}
	expect("set up", all)
	p.Status.Phase = v1.PodFailed
	delete(all, "kubernetes.io/empty-dir desired")
	delete(all, "kubernetes.io/local-volume desired")
	expect("ended", all)
	if err := m.Teardown(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	expect("torn down", nil)
}
