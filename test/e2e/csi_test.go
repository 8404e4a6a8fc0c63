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
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"berth/internal/storage/csi/csitest"
)

// driver is a CSI driver of a node, in a process that can be killed.
type driver struct {
	csitest.Driver
	driverProcess
	n *node
}

// newDriver describes a driver that stages, and has a name of its own.
func (n *node) newDriver() *driver {
	d := &driver{n: n, driverProcess: driverProcess{t: n.t}, Driver: csitest.Driver{
		Name: "csi.example.com", NodeID: "here", Dir: n.place.Dir + "/csi", Registry: n.place.Root + "/plugins_registry", Stages: true,
	}}
	n.t.Cleanup(d.kill)
	return d
}

// start runs the driver.
func (d *driver) start() {
	d.n.t.Helper()
	d.run("__csi-driver", d.Dir, d.Driver)
}

// calls are those that the driver got, of one method.
func (d *driver) calls(method string) []csitest.Call {
	d.n.t.Helper()
	all, err := csitest.Calls(d.Dir)
	must(d.n.t, err)
	return slices.DeleteFunc(all, func(c csitest.Call) bool { return c.Method != method })
}

// breakNext gives the next call of the method a fault.
func (d *driver) breakNext(method, fault string) {
	d.n.t.Helper()
	must(d.n.t, csitest.Break(d.Dir, method, fault, codes.OK))
}

// awaitBroken waits until a call has had its fault.
func (d *driver) awaitBroken(method string) {
	d.n.t.Helper()
	until(d.n.t, "the call of "+method, func() bool { return !csitest.Broken(d.Dir, method) })
}

// awaitNothing waits until no volume of the driver is there, and checks that nothing else is left
// of them.
func (d *driver) awaitNothing() {
	d.n.t.Helper()
	left := func() []string {
		staged, _ := filepath.Glob(d.n.place.Root + "/plugins/kubernetes.io/csi/*/*")
		disks, _ := filepath.Glob(d.n.place.Root + "/plugins/kubernetes.io/csi/volumeDevices/*/*")
		out := slices.DeleteFunc(append(staged, disks...), func(path string) bool { // folders of the folders of disks
			return strings.HasSuffix(path, "/volumeDevices/staging") || strings.HasSuffix(path, "/volumeDevices/publish")
		})
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		must(d.n.t, err)
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, " "+d.n.place.Root+"/") && (strings.Contains(line, "kubernetes.io~csi") || strings.Contains(line, "kubernetes.io/csi")) {
				out = append(out, line)
			}
		}
		return out
	}
	until(d.n.t, "the volumes to be taken down", func() bool { return len(left()) == 0 })
}

const csiSource = "csi: {driver: csi.example.com, volumeHandle: %s, fsType: ext4, volumeAttributes: {size: small}}"

// csiUser is a pod with the claim of the name "disk" at /d.
func csiUser(name string) string {
	return strings.Replace(manifest(name, "serve"), "  containers:", `  terminationGracePeriodSeconds: 1
  volumes:
  - {name: d, persistentVolumeClaim: {claimName: disk}}
  containers:`, 1) + "    volumeMounts: [{name: d, mountPath: /d}]\n"
}

// Volumes of a CSI driver: of a claim, which two pods share, and of a pod itself. The next agent
// and the next driver take down what earlier ones made.
func TestCSIVolumes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.newDriver()
	n.write("driver.yaml", `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example.com}
spec: {attachRequired: false, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
`)
	n.write("disk.yaml", persistent("disk", fmt.Sprintf(csiSource, "handle")))
	inline := strings.Replace(csiUser("first"), "  volumes:\n", "  securityContext: {fsGroup: 4242}\n  volumes:\n  - {name: own, csi: {driver: csi.example.com}}\n", 1)
	n.write("first.yaml", strings.Replace(inline, "volumeMounts: [", "volumeMounts: [{name: own, mountPath: /own}, ", 1))
	a := n.start()
	// The pod waits for the driver, and is told so.
	until(t, "the pod to be told that the driver is missing", func() bool {
		return strings.Contains(n.command(n.ctx, "explain", "--all", "first").out, "driver name csi.example.com not found in the list of registered CSI drivers")
	})
	d.start()
	until(t, "the CSINode to have the driver", func() bool {
		return n.command(n.ctx, "get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name} {.items[*].spec.drivers[*].nodeID}").out == "csi.example.com here"
	})
	first := n.awaitReady("first").named("first")
	n.write("second.yaml", csiUser("second"))
	second := n.awaitReady("second").named("second")

	inside := func(p *v1.Pod, path string) string {
		return fmt.Sprintf("/proc/%d/root%s", n.pid(containerID(p, "main")), path)
	}
	must(t, os.WriteFile(inside(first, "/d/file"), []byte("shared"), 0o600), os.WriteFile(inside(first, "/own/file"), []byte("own"), 0o600))
	if b, err := os.ReadFile(inside(second, "/d/file")); err != nil || string(b) != "shared" {
		t.Errorf("the second pod sees %q, %v", b, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(inside(first, "/own"), &st); err != nil || st.Gid != 4242 {
		t.Errorf("the volume has group %d, %v; want the fsGroup", st.Gid, err)
	}
	if got := len(d.calls("NodeStageVolume")); got != 1 {
		t.Errorf("the volume was staged %d times", got)
	}
	for _, c := range d.calls("NodePublishVolume") {
		pod, ephemeral := c.Context["csi.storage.k8s.io/pod.name"], c.Context["csi.storage.k8s.io/ephemeral"]
		if c.Volume == "handle" && (c.Context["size"] != "small" || ephemeral != "false" || c.Staging == "") || c.Volume != "handle" && (pod != "first" || ephemeral != "true" || c.Staging != "") {
			t.Errorf("a volume was published with %+v", c)
		}
	}

	until(t, "the driver to tell what is used of the volumes", func() bool {
		text := n.ask("/metrics")
		return strings.Contains(text, `kubelet_volume_stats_used_bytes{namespace="default",persistentvolumeclaim="disk"} 1.048576e+06`) &&
			strings.Contains(text, `kubelet_volume_stats_inodes{namespace="default",persistentvolumeclaim="disk"} 10`) &&
			strings.Contains(text, `storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/csi:csi.example.com"} 3`)
	})
	until(t, "the summary to tell what is used of the volumes", func() bool {
		text := n.ask("/stats/summary")
		return strings.Contains(text, `"name":"own"`) && strings.Contains(text, `"pvcRef":{"name":"disk","namespace":"default"}`)
	})

	a.kill()
	d.kill()
	n.remove("first.yaml")
	n.start()
	n.awaitReady("second")
	d.start()
	n.awaitGone(first.UID)
	if b, err := os.ReadFile(inside(second, "/d/file")); err != nil || string(b) != "shared" {
		t.Errorf("the second pod sees %q, %v", b, err)
	}
	if got := len(d.calls("NodeUnstageVolume")); got != 0 {
		t.Errorf("the volume was unstaged %d times though a pod has it", got)
	}
	n.remove("second.yaml")
	n.awaitGone(second.UID)
	d.awaitNothing()
	until(t, "the pods' folders to go", func() bool {
		left, err := os.ReadDir(filepath.Join(n.place.Root, "pods"))
		return err == nil && len(left) == 0 || os.IsNotExist(err)
	})
	if b, err := os.ReadFile(filepath.Join(d.Dir, "data/handle/file")); err != nil || string(b) != "shared" {
		t.Errorf("the data: %q, %v", b, err)
	}
}

// An agent, or a driver, that is killed in a call that makes one of a pod's two volumes, before or
// after the call has had its effect, while the other volume is made or there: the next one finishes
// both, and takes everything down in the end.
func TestCSIKilledWhileMounting(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		for _, victim := range []string{"agent", "driver"} {
			t.Run(method+"/"+victim, func(t *testing.T) { testCSIKilled(t, method, victim) })
		}
	}
}

// The same for calls that take a volume down.
func TestCSIKilledWhileUnmounting(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, victim := range []string{"agent", "driver"} {
			t.Run(method+"/"+victim, func(t *testing.T) { testCSIKilled(t, method, victim) })
		}
	}
}

func testCSIKilled(t *testing.T, method, victim string) {
	n := newNode(t)
	d := n.newDriver()
	n.write("disk.yaml", persistent("disk", fmt.Sprintf(csiSource, "handle"))+"---\n"+persistent("other", fmt.Sprintf(csiSource, "other")))
	d.start()
	a := n.start()
	mounting := method == "NodeStageVolume" || method == "NodePublishVolume"
	faults := map[string][]string{"agent": {csitest.Hang, csitest.HangAfter}, "driver": {csitest.Die, csitest.DieAfter}}
	for i, fault := range faults[victim] {
		// Another name each time: a killed agent may not have noted yet that the last pod is gone.
		name := fmt.Sprintf("user-%d", i)
		user := strings.NewReplacer("  volumes:\n", "  volumes:\n  - {name: o, persistentVolumeClaim: {claimName: other}}\n", "volumeMounts: [", "volumeMounts: [{name: o, mountPath: /o}, ").Replace(csiUser(name))
		strike := func() {
			d.awaitBroken(method)
			if victim == "agent" {
				a.kill()
				a = n.start()
				return
			}
			d.awaitEnd()
			d.start()
		}
		if mounting {
			d.breakNext(method, fault)
		}
		n.write("user.yaml", user)
		if mounting {
			strike()
		}
		p := n.awaitReady(name).named(name)
		for path, handle := range map[string]string{"d": "handle", "o": "other"} {
			must(t, os.WriteFile(fmt.Sprintf("/proc/%d/root/%s/file", n.pid(containerID(p, "main")), path), []byte(fault), 0o600))
			if b, err := os.ReadFile(filepath.Join(d.Dir, "data", handle, "file")); err != nil || string(b) != fault {
				t.Errorf("%s: the data of volume %s: %q, %v", fault, handle, b, err)
			}
		}
		if !mounting {
			d.breakNext(method, fault)
		}
		n.remove("user.yaml")
		if !mounting {
			strike()
		}
		n.awaitGone(p.UID)
		d.awaitNothing()
		until(t, "the pod's folder to go", func() bool {
			_, err := os.Lstat(filepath.Join(n.place.Root, "pods", string(p.UID)))
			return os.IsNotExist(err)
		})
	}
}
