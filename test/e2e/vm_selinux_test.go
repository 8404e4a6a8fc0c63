//go:build e2e && vm

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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

// Containers run with the label that their pod asks for, or one that is the pod's alone, and so
// does what the agent gives them; what is the host's keeps its own. A volume whose driver can is
// mounted with the pod's label, and anew for a pod with another one.
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

	for _, folder := range []string{"device-plugins", "plugins_registry"} {
		if got := fileLabel(t, filepath.Join(n.place.Root, folder)); got != file+"s0" {
			t.Errorf("plugins that run in containers cannot write into %s, which has the label %q", folder, got)
		}
	}

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
		return strings.Contains(n.events(""), "volume uses the ReadWriteOncePod access mode and is already in use by another pod")
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
		return strings.Contains(n.events(""), "multiple SELinux labels found: "+file+"s0:c1,"+file+"s0:c2")
	})
	n.remove("both.yaml")
	d.awaitNothing()
	if left, err := filepath.Glob(n.place.Root + "/pods/*/volumes/kubernetes.io~csi/*"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

const labelledDisk = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: THE_NODE.csi.example.com}
spec: {attachRequired: false, seLinuxMount: true}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: THE_NODE-labelled}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: THE_NODE-labelled
  csi: {driver: THE_NODE.csi.example.com, volumeHandle: handle}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: THE_NODE-labelled, volumeName: THE_NODE-labelled, resources: {requests: {storage: 1Gi}}}
`

// A node with SELinuxMount (KEP-1710) mounts a volume that pods may share with the label of one of
// them. Those with other labels are told, and have it one after the other; those that want it
// labelled file by file share it with each other alone.
func TestSELinuxMount(t *testing.T) {
	needsSELinux(t)
	const file = "system_u:object_r:container_file_t:"
	c := newCluster(t)
	c.identity = append(c.identity, "--selinux")
	c.configure("featureGates: {SELinuxMount: true}\n")
	d := c.newDriver()
	d.Name, d.Memory = c.name+".csi.example.com", true
	t.Cleanup(func() {
		c.tidy("delete", "--ignore-not-found", "--wait=false", "pv/"+c.name+"-labelled", "csidriver/"+d.Name)
	})
	d.start()
	c.startMember()
	c.apply(labelledDisk)
	create := func(name, level string, policy *v1.PodSELinuxChangePolicy) { // nil is MountOption
		t.Helper()
		p := c.inCluster(c.act(name, v1.RestartPolicyAlways, nil, actor("main", "echo x > /data/$me; stay\n")))
		withVolume(p, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}})
		p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}, SELinuxChangePolicy: policy}
		c.create(p)
	}
	remove := func(name string) { c.kubectl("delete", "pod", name, "--wait=false") }
	// wantLabel compares the flags of the last call that staged the volume, and the label of a file
	// that a pod sees in it.
	wantLabel := func(p *v1.Pod, flags, level string) {
		t.Helper()
		staged := d.calls("NodeStageVolume")
		if got := strings.Join(staged[len(staged)-1].Flags, ","); got != flags {
			t.Errorf("staged for %s with %q, want %q", p.Name, got, flags)
		}
		if got := fileLabel(t, fmt.Sprintf("/proc/%d/root/data/main", c.pid(containerID(p, "main")))); got != file+level {
			t.Errorf("%s sees its file with the label %q, want the level %s", p.Name, got, level)
		}
	}
	levels := map[string]string{"first": "s0:c1", "second": "s0:c2", "third": "s0:c3", "recursive": "s0:c4", "other": "s0:c5"}
	create("first", levels["first"], nil)
	wantLabel(c.awaitAPIReady("first").named("first"), `context="`+file+`s0:c1"`, "s0:c1")

	// Two others wait for the first, and then one for the other.
	waiting := []string{"second", "third"}
	for _, name := range waiting {
		create(name, levels[name], nil)
		c.awaitEvent(name, "FailedMount", `conflicting SELinux labels of volume `+c.name+`-labelled: "`+file+`s0:c1" and "`+file+levels[name]+`"`)
	}
	gone := "first"
	for len(waiting) > 0 {
		remove(gone)
		now := c.awaitAPI("one of those that wait to be ready", func(p pods) bool {
			return slices.ContainsFunc(waiting, func(name string) bool { return p.ready(name) })
		})
		gone = waiting[slices.IndexFunc(waiting, func(name string) bool { return now.ready(name) })]
		waiting = slices.DeleteFunc(waiting, func(name string) bool { return name == gone })
		wantLabel(now.named(gone), `context="`+file+levels[gone]+`"`, levels[gone])
	}

	// File by file: not beside a pod that has it mounted with a label, and with any label when that
	// has gone.
	create("recursive", levels["recursive"], ptr.To(v1.SELinuxChangePolicyRecursive))
	c.awaitEvent("recursive", "FailedMount", `conflicting SELinux labels of volume `+c.name+`-labelled: "`+file+levels[gone]+`" and ""`)
	remove(gone)
	wantLabel(c.awaitAPIReady("recursive").named("recursive"), "", "s0:c4")
	create("other", levels["other"], ptr.To(v1.SELinuxChangePolicyRecursive))
	wantLabel(c.awaitAPIReady("other", "recursive").named("other"), "", "s0:c5")
	if n := len(d.calls("NodeStageVolume")); n != 4 {
		t.Errorf("the volume was staged %d times, want once for each of those with a label, and once without", n)
	}
	remove("recursive")
	remove("other")
	d.awaitNothing()
}

// What is the pod's own it has, and a volume with its label; a pod with another label is denied
// that volume, by a kernel that enforces its policy.
func TestSELinuxEnforced(t *testing.T) {
	needsSELinux(t)
	const mode = "/sys/fs/selinux/enforce"
	must(t, os.WriteFile(mode, []byte("1"), 0))
	t.Cleanup(func() { must(t, os.WriteFile(mode, []byte("0"), 0)) })
	n := newNode(t)
	n.flags = append(n.flags, "--selinux")
	data := filepath.Join(n.place.Dir, "data")
	must(t, os.Mkdir(data, 0o755), unix.Lsetxattr(data, "security.selinux", []byte("system_u:object_r:container_file_t:s0:c1,c2"), 0))
	put := func(name, level string) {
		stamp := func(container, path string) v1.Container {
			return v1.Container{
				Name: container, Image: helloImage, Args: []string{"stamp", path + "/" + name},
				VolumeMounts: []v1.VolumeMount{{Name: container, MountPath: path}},
			}
		}
		n.put(&v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PodSpec{
				RestartPolicy:   v1.RestartPolicyNever,
				SecurityContext: &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}},
				Containers:      []v1.Container{stamp("own", "/own"), stamp("data", "/data")},
				Volumes: []v1.Volume{
					{Name: "own", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
					{Name: "data", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: data}}},
				},
			},
		})
	}
	put("same", "s0:c1,c2")
	put("other", "s0:c3,c4")
	n.start()
	until(t, "the pod with the volume's label to write into it", func() bool { return exists(t, data+"/same") })
	other := n.await("the pod with another label to fail", func(p pods) bool { return container(p.named("other"), "data").State.Terminated != nil }).named("other")
	wantTerminated(t, other, "data", 1, "Error")
	if exists(t, data+"/other") {
		t.Error("the pod with another label has written into the volume")
	}
	for _, name := range []string{"same", "other"} {
		p := n.await(name+" to have what is its own", func(p pods) bool { return container(p.named(name), "own").State.Running != nil }).named(name)
		own := filepath.Join(n.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/own", name)
		until(t, name+" to write into its own volume", func() bool { return exists(t, own) })
	}
	if c := container(n.awaitReady("same").named("same"), "data"); c.State.Running == nil {
		t.Errorf("the container with the volume is %+v", c.State)
	}
}
