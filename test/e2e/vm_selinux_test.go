//go:build e2e && vm

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// needsSELinux fails the test where the kernel has no policy of SELinux.
func needsSELinux(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		t.Fatal("this host was not started with SELinux: run this test by make e2e-vm BERTH_LSM=selinux")
	}
}

// fileLabel is the label that SELinux has for a file.
func fileLabel(t *testing.T, path string) string {
	t.Helper()
	label := make([]byte, 256)
	size, err := unix.Lgetxattr(path, "security.selinux", label)
	if err != nil {
		t.Errorf("label of %s: %v", path, err)
		return ""
	}
	return string(bytes.TrimRight(label[:size], "\x00"))
}

// Containers run with the label that their pod asks for, or one that is the pod's alone, and so does what the agent gives them; what is the host's keeps its
// own. A volume whose driver can is mounted with the pod's label, and anew for a pod with another one.
func TestSELinux(t *testing.T) {
	needsSELinux(t)
	const process, file = "system_u:system_r:container_t:", "system_u:object_r:container_file_t:"
	n := newNode(t)
	n.flags = append(n.flags, "--selinux")
	d := n.newDriver()
	d.Memory = true
	n.write("driver.yaml", `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example.com}
spec: {attachRequired: false, seLinuxMount: true}
`)
	n.write("disk.yaml", strings.ReplaceAll(persistent("disk", fmt.Sprintf(csiSource, "handle")), "ReadWriteOnce]", "ReadWriteOncePod]"))
	pod := func(name, level string, disk bool) *v1.Pod {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "stay\n"))
		c := &p.Spec.Containers[0]
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "empty", MountPath: "/empty"})
		if disk {
			withVolume(p, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}})
		}
		if level != "" {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
		}
		return p
	}
	n.put(pod("first", "s0:c10,c20", true))
	n.put(pod("plain", "", false))
	d.start()
	n.start()
	now := n.awaitReady("first", "plain")

	inside := func(p *v1.Pod, path string) string {
		return fmt.Sprintf("/proc/%d/root%s", n.pid(containerID(p, "main")), path)
	}
	labels := func(p *v1.Pod) (level string) {
		t.Helper()
		own := strings.TrimRight(readFile(t, fmt.Sprintf("/proc/%d/attr/current", n.pid(containerID(p, "main")))), "\x00")
		level, ok := strings.CutPrefix(own, process)
		if !ok {
			t.Errorf("%s runs as %q", p.Name, own)
		}
		for _, path := range []string{"/empty", "/etc/hosts", "/dev/termination-log"} {
			if got := fileLabel(t, inside(p, path)); got != file+level {
				t.Errorf("%s: %s has the label %q, and the process %q", p.Name, path, got, own)
			}
		}
		if got := fileLabel(t, n.stage(p.Name)); strings.HasPrefix(got, file) {
			t.Errorf("%s: the host's own folder has got the label %q", p.Name, got)
		}
		return level
	}
	if got := labels(now.named("first")); got != "s0:c10,c20" {
		t.Errorf("the pod has the level %q, and asks for another one", got)
	}
	if got := labels(now.named("plain")); got == "s0" || got == "s0:c10,c20" {
		t.Errorf("the pod that asks for no level has %q, which is not its own", got)
	}
	wantDisk := func(name, level string) {
		t.Helper()
		staged := d.calls("NodeStageVolume")
		if flags := staged[len(staged)-1].Flags; len(flags) != 1 || flags[0] != `context="`+file+level+`"` {
			t.Errorf("staged for %s with %q", name, flags)
		}
		if got := fileLabel(t, inside(n.awaitReady(name).named(name), "/data")); got != file+level {
			t.Errorf("%s has its volume with the label %q", name, got)
		}
	}
	wantDisk("first", "s0:c10,c20")

	// Another label: when the first pod has gone.
	n.put(pod("second", "s0:c1", true))
	until(t, "the second pod to be told that the volume is the first one's", func() bool {
		return strings.Contains(n.berth("events"), "volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	})
	n.remove("first.yaml")
	n.awaitGone(now.named("first").UID)
	n.awaitReady("second")
	wantDisk("second", "s0:c1")

	// Two labels for one mount.
	n.remove("second.yaml")
	both := pod("both", "s0:c1", true)
	other := both.Spec.Containers[0].DeepCopy()
	other.Name, other.SecurityContext = "other", &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c2"}}
	both.Spec.Containers = append(both.Spec.Containers, *other)
	n.put(both)
	until(t, "the pod with two labels to be refused its volume", func() bool {
		return strings.Contains(n.berth("events"), "multiple SELinux labels found: "+file+"s0:c1,"+file+"s0:c2")
	})
	n.remove("both.yaml")
	d.awaitNothing()
	if left, err := filepath.Glob(n.place.Root + "/pods/*/volumes/kubernetes.io~csi/*"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
