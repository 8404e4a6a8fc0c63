package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/storage/csi/csitest"
)

const filePolicy = "system_u:object_r:container_file_t:s0"

func TestComputeMountLabel(t *testing.T) {
	level := func(l string) *v1.SELinuxOptions { return &v1.SELinuxOptions{Level: l} }
	for name, tt := range map[string]struct {
		pod          *v1.SELinuxOptions
		first, other *v1.SELinuxOptions
		policy       string
		want, err    string
	}{
		"nothing is asked for":        {policy: filePolicy},
		"of the pod":                  {pod: level("s0:c1,c2"), policy: filePolicy, want: "system_u:object_r:container_file_t:s0:c1,c2"},
		"of one container":            {pod: level("s0:c1,c2"), first: level("s0:c3"), other: level("s0:c3"), policy: filePolicy, want: "system_u:object_r:container_file_t:s0:c3"},
		"user, and type of processes": {pod: &v1.SELinuxOptions{User: "u_u", Role: "r_r", Type: "spc_t", Level: "s0:c1"}, policy: filePolicy, want: "u_u:object_r:container_file_t:s0:c1"},
		"no level":                    {pod: &v1.SELinuxOptions{Type: "spc_t"}, policy: filePolicy},
		"two":                         {first: level("s0:c1"), other: level("s0:c2"), policy: filePolicy, err: "multiple SELinux labels found: system_u:object_r:container_file_t:s0:c1,system_u:object_r:container_file_t:s0:c2"},
		"one, and none":               {first: level("s0:c1"), policy: filePolicy, err: "multiple SELinux labels found: ,system_u:object_r:container_file_t:s0:c1"},
		"a policy that is none":       {pod: level("s0:c1"), policy: "strange"},
	} {
		t.Run(name, func(t *testing.T) {
			p := podWith(emptyDir("v", ""))
			mounts := p.Spec.Containers[0].VolumeMounts
			p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: tt.pod}
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{SELinuxOptions: tt.first}
			p.Spec.InitContainers = []v1.Container{
				{Name: "i", VolumeMounts: mounts, SecurityContext: &v1.SecurityContext{SELinuxOptions: tt.other}},
				{Name: "without", SecurityContext: &v1.SecurityContext{SELinuxOptions: level("s0:c9")}},
			}
			got, err := computeMountLabel(p, []string{"v"}, tt.policy)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("got %q, %v; want %q, %s", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestIsMountedWithLabel(t *testing.T) {
	alone, shared := []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	recursive := &v1.PodSecurityContext{SELinuxChangePolicy: ptr.To(v1.SELinuxChangePolicyRecursive)}
	able := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{SELinuxMount: ptr.To(true)}}
	for name, tt := range map[string]struct {
		volume csiVolume
		object *storagev1.CSIDriver
		modes  LabelledModes
		pod    *v1.PodSecurityContext
		want   bool
	}{
		"for one pod alone":                 {volume: csiVolume{accessModes: alone}, object: able, want: true},
		"for many":                          {volume: csiVolume{accessModes: shared}, object: able},
		"for many, with the feature":        {volume: csiVolume{accessModes: shared}, object: able, modes: AllModes, want: true},
		"for one alone, or many":            {volume: csiVolume{accessModes: append(alone, shared...)}, object: able},
		"a driver that cannot":              {volume: csiVolume{accessModes: alone}, object: &storagev1.CSIDriver{}, modes: AllModes},
		"a driver of which nothing is said": {volume: csiVolume{accessModes: alone}, modes: AllModes},
		"a pod that wants it otherwise":     {volume: csiVolume{accessModes: alone}, object: able, modes: AllModes, pod: recursive},
		"a disk":                            {volume: csiVolume{accessModes: alone, block: true}, object: able, modes: AllModes},
	} {
		tt.volume.pod, tt.volume.object = &v1.Pod{Spec: v1.PodSpec{SecurityContext: tt.pod}}, tt.object
		if got := isMountedWithLabel(tt.volume, tt.modes); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The label is of all pods that have the volume at a time, and outlives the agent; when they are
// gone, another one can be.
func TestCSIVolumeMountedWithLabel(t *testing.T) {
	d := newDriven(t, nil)
	pv := d.claim("c")
	d.objects.drivers[driverName].Spec.SELinuxMount = ptr.To(true)
	selinux := func() {
		d.csi().config.FileLabel, d.csi().config.LabelledModes = func() string { return filePolicy }, AllModes
	}
	selinux()
	labelled := func(id, level string) *v1.Pod {
		p := d.user(id, "c")
		p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
		return p
	}
	counts := newLedger(d.host)
	first := labelled("first", "s0:c1")
	for range 2 { // the second time it is there
		if _, err := d.setup(t, first); err != nil {
			t.Fatal(err)
		}
	}
	expectFlag := func(want string) {
		t.Helper()
		calls := d.allCalls()
		for _, c := range calls[len(calls)-2:] {
			if !slices.Equal(c.Flags, []string{"noatime", `context="system_u:object_r:container_file_t:` + want + `"`}) {
				t.Errorf("%s with flags %q", c.Method, c.Flags)
			}
		}
	}
	expectFlag("s0:c1")
	for _, dir := range []string{d.staging("c"), publishDir(filepath.Join(d.host.root, "pods/first"), "pv-c")} {
		if b, err := os.ReadFile(dir + "/vol_data.json"); err != nil || !strings.Contains(string(b), `"seLinuxMountContext":"system_u:object_r:container_file_t:s0:c1"`) {
			t.Errorf("%s: %s, %v", dir, b, err)
		}
	}
	second := labelled("second", "s0:c2")
	expectConflict := func() {
		t.Helper()
		const want = `conflicting SELinux labels of volume pv-c: "system_u:object_r:container_file_t:s0:c1" and "system_u:object_r:container_file_t:s0:c2"`
		if _, err := d.setup(t, second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v", err)
		}
	}
	expectConflict()
	mixed := labelled("mixed", "s0:c1")
	mixed.Spec.Containers = append(mixed.Spec.Containers, *mixed.Spec.Containers[0].DeepCopy())
	mixed.Spec.Containers[1].Name, mixed.Spec.Containers[1].SecurityContext = "other", &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c9"}}
	if _, err := d.setup(t, mixed); err == nil || !strings.Contains(err.Error(), "multiple SELinux labels") {
		t.Errorf("got %v", err)
	}
	modes := modeLabel(pv.Spec.AccessModes)
	metricstest.Expect(t, counts.registry, map[string]float64{
		fmt.Sprintf("volume_manager_selinux_pod_context_mismatch_errors_total{access_mode=%q}", modes):                                                1,
		fmt.Sprintf("volume_manager_selinux_volume_context_mismatch_errors_total{access_mode=%q,volume_plugin=%q}", modes, csiPluginName(driverName)): 1,
		fmt.Sprintf("volume_manager_selinux_volumes_admitted_total{access_mode=%q,volume_plugin=%q}", modes, csiPluginName(driverName)):               1,
	})
	// Of two that wait for the first to go neither is in the other's way.
	if _, err := d.setup(t, labelled("third", "s0:c3")); err == nil {
		t.Error("a third pod has the volume with its own label")
	}
	d.restart()
	selinux()
	expectConflict()
	if _, err := d.setup(t, labelled("third", "s0:c3")); err == nil {
		t.Error("a third pod has the volume with its own label")
	}
	if err := d.Teardown(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if err := csitest.Break(d.driver.Dir, "NodeUnstageVolume", csitest.Fail, codes.Internal); err != nil {
		t.Fatal(err)
	}
	const waits = `waiting for unmount of volume "pv-c", because it is already mounted to a different pod with a different SELinux label: `
	if _, err := d.setup(t, second); err == nil || !strings.Contains(err.Error(), waits) {
		t.Errorf("got %v", err)
	}
	if _, err := d.setup(t, second); err != nil {
		t.Fatal(err)
	}
	d.expectCalls("Stage", "Publish", "Unpublish", "Unstage", "Unstage", "Stage", "Publish") // the first Unstage failed
	expectFlag("s0:c2")
	if len(pv.Spec.MountOptions) != 1 {
		t.Errorf("the options of the persistent volume: %q", pv.Spec.MountOptions)
	}
	if err := errors.Join(d.Teardown(t.Context(), "second"), d.Teardown(t.Context(), "third")); err != nil {
		t.Fatal(err)
	}
	d.unstageAll()
	d.expectGone()
	if len(d.csi().state.labels) != 0 {
		t.Errorf("labels of nobody: %v", d.csi().state.labels)
	}
}

// A pod that has a volume goes on with it when volumes are mounted with labels from now on:
// containers of it may be restarted. Other pods are told.
func TestCSIVolumeKeepsTheLabelThatItHas(t *testing.T) {
	d := newDriven(t, nil)
	d.claim("c")
	d.objects.drivers[driverName].Spec.SELinuxMount = ptr.To(true)
	p := d.user("first", "c")
	p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c1"}}
	d.csi().config.FileLabel = func() string { return filePolicy }
	if _, err := d.setup(t, p); err != nil {
		t.Fatal(err)
	}
	d.restart()
	d.csi().config.FileLabel, d.csi().config.LabelledModes = func() string { return filePolicy }, AllModes
	if _, err := d.setup(t, p); err != nil {
		t.Errorf("the pod that has it: %v", err)
	}
	second := d.user("second", "c")
	second.Spec.SecurityContext = p.Spec.SecurityContext
	const want = `conflicting SELinux labels of volume pv-c: "" and "system_u:object_r:container_file_t:s0:c1"`
	if _, err := d.setup(t, second); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another pod: %v, want %s", err, want)
	}
	for _, c := range d.allCalls() {
		if strings.Contains(strings.Join(c.Flags, ","), "context=") {
			t.Errorf("%s with flags %q", c.Method, c.Flags)
		}
	}
}
