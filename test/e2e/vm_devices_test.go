//go:build e2e && vm

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/record/journal"
	"berth/internal/resources/devicemanager/devicetest"
)

// rebootedDevice is what the plugin of that test offers.
const rebootedDevice = "example.com/null"

// After a reboot a pod with a device and a CPU to itself is not refused: it waits for the plugin,
// which comes later than the agent, and then has the same device and the same CPU. The files say
// so, before and after.
//
// The test runs twice, before the reboot that it asks for, and after it.
func TestVMRebootDevices(t *testing.T) {
	n, back := newRebootNode(t, "devices")
	m := splitCPUs(t)
	near := nodesOf(t, m.own)
	d := n.newDevicePlugin(rebootedDevice, devicetest.Device{ID: "far", Host: "/dev/null"}, devicetest.Device{ID: "near", Host: "/dev/zero", Nodes: near})
	if strings.ContainsAny(m.nodes, ",-") {
		d.Devices[0].Nodes = []int64{0}
	} else {
		d.Devices = d.Devices[1:]
	}
	if back {
		n.haveDevicesAgain(m, d)
		return
	}
	n.haveDevices(m, d)
	askForReboot(t)
}

// nodesOf are the NUMA nodes on which the CPU lies.
func nodesOf(t *testing.T, cpu string) (nodes []int64) {
	t.Helper()
	dirs, err := filepath.Glob("/sys/devices/system/cpu/cpu" + cpu + "/node[0-9]*")
	must(t, err)
	for _, dir := range dirs {
		q, err := resource.ParseQuantity(strings.TrimPrefix(filepath.Base(dir), "node"))
		must(t, err)
		nodes = append(nodes, q.Value())
	}
	return nodes
}

// heldDevice is what the container of the pod sees of its device.
func (n *node) heldDevice(pod string) string {
	n.t.Helper()
	return strings.TrimSpace(n.execIn("", pod, "--", "/usr/bin/sh", "-c", "echo $"+devicetest.EnvName(rebootedDevice)+"; test -c /dev/$"+devicetest.EnvName(rebootedDevice)+" && echo is there").out)
}

// wantHeldNear checks who has what, by what runs and by what is on disk.
func (n *node) wantHeldNear(m split, now pods) {
	n.t.Helper()
	n.awaitCPUs(now, m.pinned())
	p := now.named("pinned-n1")
	n.wantCPUState(m.reserved, map[string]map[string]string{string(p.UID): {"main": m.own}})
	if got := n.heldDevice("pinned-n1"); got != "near\nis there" {
		n.t.Errorf("the container sees %q of its device", got)
	}
	file := n.place.Root + "/device-plugins/kubelet_internal_checkpoint"
	if b := readFile(n.t, file); !strings.Contains(b, string(p.UID)) || !strings.Contains(b, `"near"`) {
		n.t.Errorf("%s: %s", file, b)
	}
}

func (n *node) haveDevices(m split, d *devicePlugin) {
	t := n.t
	t.Helper()
	must(t, os.MkdirAll(n.manifests(), 0o711))
	n.put(n.act("rest", v1.RestartPolicyAlways, nil, actor("main", places+"stay")))
	pinned := bounded(actor("main", places+"stay"), "", "1 32Mi")
	for _, list := range []v1.ResourceList{pinned.Resources.Limits, pinned.Resources.Requests} {
		if list != nil {
			list[rebootedDevice] = resource.MustParse("1")
		}
	}
	a := n.configuredAgent(m.static() + "topologyManagerPolicy: single-numa-node\n")
	u := n.writeUnit("berth-devices.service", a.cmd.Args...)
	u.command("start")
	systemctl(t, "enable", u.name)
	d.start()
	until(t, "the node to have the devices", func() bool {
		q := n.self().Status.Allocatable[rebootedDevice]
		return q.Value() == int64(len(d.Devices))
	})
	n.put(n.act("pinned", v1.RestartPolicyAlways, nil, pinned))
	now := n.awaitReady("pinned-n1", "rest-n1")
	n.wantHeldNear(m, now)
	kept, err := json.Marshal(now)
	must(t, err, os.WriteFile(n.place.Dir+"/before", kept, 0o644))
}

func (n *node) haveDevicesAgain(m split, d *devicePlugin) {
	t := n.t
	t.Helper()
	var before pods
	decode(t, []byte(readFile(t, n.place.Dir+"/before")), &before)
	u := n.unit("berth-devices.service")
	n.sweepReboot(u.remove)
	u.awaitAnswer(0)
	boot := bootTime(t)
	since := func(p pods, name string) bool {
		return p.ready(name) && container(p.named(name), "main").State.Running.StartedAt.After(boot)
	}
	n.await("the other pod to run, and this one to wait for its device", func(p pods) bool {
		if refused := p.named("pinned-n1"); refused != nil && refused.Status.Phase == v1.PodFailed {
			t.Fatalf("the pod is refused: %s: %s", refused.Status.Reason, refused.Status.Message)
		}
		waiting := p.named("pinned-n1")
		return since(p, "rest-n1") && waiting != nil && container(waiting, "main").State.Waiting != nil
	})
	until(t, "the journal to say what the pod waits for", func() bool {
		return slices.ContainsFunc(n.explain("pinned-n1"), func(e journal.Entry) bool {
			return strings.Contains(e.Decision+e.Why+e.Error, "waiting for the device plugin of "+rebootedDevice+" to register")
		})
	})
	d.start()
	now := n.await("the pod to have its device again", func(p pods) bool { return since(p, "rest-n1") && since(p, "pinned-n1") })
	if was, is := before.named("pinned-n1").UID, now.named("pinned-n1").UID; was != is {
		t.Errorf("the pod has UID %s, and had %s", is, was)
	}
	n.wantHeldNear(m, now)
}
