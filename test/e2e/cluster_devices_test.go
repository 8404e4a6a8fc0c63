//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/resources/devicemanager/devicetest"
)

// devicePlugin is a device plugin of a node, in a process that can be killed.
type devicePlugin struct {
	devicetest.Plugin
	driverProcess
	n *node
}

// newDevicePlugin describes a plugin that offers device nodes of the host.
func (n *node) newDevicePlugin(resource string, devices ...devicetest.Device) *devicePlugin {
	d := &devicePlugin{n: n, driverProcess: driverProcess{t: n.t}, Plugin: devicetest.Plugin{
		Resource: resource, Dir: n.place.Dir + "/plugin", Folder: n.place.Root + "/device-plugins", Devices: devices,
		Mount: n.place.Dir + "/plugin/shown", PreStarts: true,
	}}
	n.t.Cleanup(d.kill)
	return d
}

// start runs the plugin.
func (d *devicePlugin) start() {
	d.n.t.Helper()
	must(d.n.t, os.MkdirAll(d.Mount, 0o755))
	must(d.n.t, os.WriteFile(filepath.Join(d.Mount, "driver"), []byte("one"), 0o644))
	d.run("__device-plugin", d.Dir, &d.Plugin)
}

// awaitDevices waits until the Node has and gives so many.
func (c *cluster) awaitDevices(name v1.ResourceName, has, gives string) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("the node to have %s and give %s of %s", has, gives, name), func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		if err != nil {
			return false
		}
		capacity, allocatable := n.Status.Capacity[name], n.Status.Allocatable[name]
		return capacity.String() == has && allocatable.String() == gives
	})
}

// wants has the pod's container ask for devices.
func wants(p *v1.Pod, name v1.ResourceName, amount string) *v1.Pod {
	list := v1.ResourceList{name: resource.MustParse(amount)}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list, Limits: list}
	return p
}

// Pods get the devices of a plugin, with what else it gives them, each to one; they keep them
// whatever becomes of agent and plugin, and are told of their health. What cannot be had is
// refused.
func TestClusterDevices(t *testing.T) {
	t.Parallel()
	const name = "example.com/null"
	c := newCluster(t)
	d := c.newDevicePlugin(name, devicetest.Device{ID: "n0", Host: "/dev/null"}, devicetest.Device{ID: "n1", Host: "/dev/zero"})
	a := c.startMember()
	d.start()
	c.awaitDevices(name, "2", "2")

	user := func(pod string) *v1.Pod {
		return wants(shell(c.helloPod(pod), "trap 'exit 0' TERM; while :; do /usr/bin/sleep 0.1; done"), name, "1")
	}
	c.create(user("first"))
	before := c.awaitAPIReady("first")
	first := c.exec("first", "/usr/bin/sh", "-c", "echo $"+devicetest.EnvName(name)+"; test -c /dev/$"+devicetest.EnvName(name)+" && echo device; /usr/bin/cat /devices/null/driver")
	id, rest, _ := strings.Cut(first, "\n")
	if strings.TrimSpace(rest) != "device\none" || id != "n0" && id != "n1" {
		t.Fatalf("the container sees %q", first)
	}
	has := func(pod string) string {
		return strings.TrimSpace(c.exec(pod, "/usr/bin/sh", "-c", "echo $"+devicetest.EnvName(name)))
	}
	other := map[string]string{"n0": "n1", "n1": "n0"}[id]

	// The other device goes to the next pod, and a third one finds none.
	c.create(user("second"))
	c.awaitAPIReady("second")
	if got := has("second"); got != other {
		t.Errorf("the second pod has %q, want %q", got, other)
	}
	third := user("third")
	third.Spec.NodeSelector, third.Spec.NodeName = nil, c.name
	c.create(third)
	c.awaitAPI("the third pod to be refused", func(p pods) bool {
		refused := p.named("third")
		return refused != nil && refused.Status.Phase == v1.PodFailed && refused.Status.Reason == "OutOf"+name
	})

	// What becomes of the device is told, without anybody asking.
	health := func(pod, want string) func(pods) bool {
		return func(p pods) bool {
			for _, s := range p.named(pod).Status.ContainerStatuses[0].AllocatedResourcesStatus {
				return s.Name == name && len(s.Resources) == 1 && string(s.Resources[0].Health) == want
			}
			return false
		}
	}
	c.awaitAPI("the device to be healthy", health("first", "Healthy"))
	must(t, devicetest.MakeUnhealthy(d.Dir, id))
	c.awaitAPI("the device to be unhealthy", health("first", "Unhealthy"))
	c.awaitDevices(name, "2", "1")
	must(t, devicetest.MakeHealthy(d.Dir, id))
	c.awaitDevices(name, "2", "2")

	// An agent that finds no plugin leaves what runs alone. A container that has to be started
	// again waits for the plugin.
	a.kill()
	d.kill()
	c.startMember()
	c.awaitDevices(name, "0", "0")
	if after := c.awaitAPIReady("first", "second"); containerID(after.named("first"), "main") != containerID(before.named("first"), "main") {
		t.Error("the container was started again with the agent")
	}
	c.signal(before.named("first"), "main", unix.SIGKILL)
	c.awaitEvent("first", "Failed", "waiting for the device plugin of "+name+" to register")
	starts := d.calls("PreStartContainer")
	d.start()
	c.awaitDevices(name, "2", "2")
	c.awaitAPI("the container to run again", func(p pods) bool {
		s := p.named("first").Status.ContainerStatuses[0]
		return s.RestartCount > 0 && s.Ready
	})
	if got := has("first"); got != id {
		t.Errorf("after all that the first pod has %q, want %q", got, id)
	}
	if got := d.calls("PreStartContainer"); got <= starts {
		t.Errorf("the plugin was told of %d starts before and %d after", starts, got)
	}

	// A device that is free again goes to whoever asks next.
	c.kubectl("delete", "pod", "second", "--grace-period=1")
	c.create(user("fourth"))
	c.awaitAPIReady("fourth")
	if got := has("fourth"); got != other {
		t.Errorf("the fourth pod has %q, want %q", got, other)
	}
}

// calls is how many calls of the method the plugin got.
func (d *devicePlugin) calls(method string) (n int) {
	d.n.t.Helper()
	all, err := devicetest.Calls(d.Dir)
	must(d.n.t, err)
	for _, call := range all {
		if call.Method == method {
			n++
		}
	}
	return n
}
