//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"berth/internal/resources/dra/dratest"
)

// draDriver is a DRA driver of a node, in a process that can be killed.
type draDriver struct {
	dratest.Driver
	driverProcess
	n *node
}

// cdiFolder is where containerd finds what CDI names stand for (Container Device Interface).
const cdiFolder = "/var/run/cdi"

// newDRADriver describes a driver of the name. What it writes for the runtime goes with the test.
func (n *node) newDRADriver(name string) *draDriver {
	d := &draDriver{n: n, driverProcess: driverProcess{t: n.t}, Driver: dratest.Driver{
		Name: name, Dir: n.place.Dir + "/dra", Registry: n.place.Root + "/plugins_registry", CDI: cdiFolder, Pool: "pool",
	}}
	n.t.Cleanup(func() {
		d.kill()
		left, _ := filepath.Glob(cdiFolder + "/" + name + "-*")
		for _, file := range left {
			_ = os.Remove(file)
		}
		_ = os.Remove(cdiFolder) // which others may use
	})
	return d
}

// start runs the driver.
func (d *draDriver) start() {
	d.n.t.Helper()
	must(d.n.t, os.MkdirAll(cdiFolder, 0o755))
	d.run("__dra-driver", d.Dir, &d.Driver)
}

// prepared is how many claims the driver has prepared.
func (d *draDriver) prepared() int {
	d.n.t.Helper()
	uids, err := dratest.Prepared(d.Dir)
	must(d.n.t, err)
	return len(uids)
}

// THE_NODE stands for the name of the node.
const draManifest = `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: THE_NODE}
spec: {selectors: [{cel: {expression: 'device.driver == "THE_NODE.dra.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: THE_NODE-dra}
spec:
  driver: THE_NODE.dra.example.com
  nodeName: THE_NODE
  pool: {name: pool, generation: 1, resourceSliceCount: 1}
  devices: [{name: device}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: card}
spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: THE_NODE}}]}}}
`

// A pod gets the device of its claim, which the cluster's controller makes and its scheduler
// allocates, by the name that the driver has told; whatever dies in the middle, the driver lets go
// of it when the pod has ended, and the next pod has it.
func TestClusterClaimsOfDevices(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	d := c.newDRADriver(c.name + ".dra.example.com")
	t.Cleanup(func() {
		c.tidy("delete", "--ignore-not-found", "--wait=false", "deviceclass/"+c.name, "resourceslice/"+c.name+"-dra")
	})
	a := c.startMember()
	d.start()
	c.apply(strings.ReplaceAll(draManifest, "THE_NODE", c.name))

	user := func(name string) string {
		return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 1
  volumes: [{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /lib}}, {name: lib64, hostPath: {path: /lib64}}]
  resourceClaims: [{name: card, resourceClaimTemplateName: card}]
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    resources: {claims: [{name: card}]}
    volumeMounts: [{name: usr, mountPath: /usr}, {name: lib, mountPath: /lib}, {name: lib64, mountPath: /lib64}]
`, name, c.name)
	}
	// The agent dies while the driver prepares the claim, and the driver after that.
	must(t, dratest.Break(d.Dir, dratest.Prepare, dratest.HangAfter, codes.OK))
	c.apply(user("first"))
	until(t, "the driver to have prepared the claim", func() bool { return !dratest.Broken(d.Dir, dratest.Prepare) && d.prepared() == 1 })
	a.kill()
	d.kill()
	a = c.startMember()
	c.awaitEvent("first", "FailedPrepareDynamicResources", "is not registered")
	d.start()
	before := c.awaitAPIReady("first").named("first")
	if got := c.exec("first", "/usr/bin/env"); !strings.Contains(got, "\nDRA_") {
		t.Errorf("the container has the variables %q", got)
	}

	// A pod that runs does not need agent or driver, and its claim is taken back once.
	a.kill()
	c.startMember()
	if after := c.awaitAPIReady("first").named("first"); containerID(after, "main") != containerID(before, "main") {
		t.Error("the container was started again with the agent")
	}
	must(t, dratest.Break(d.Dir, dratest.Unprepare, dratest.Fail, codes.Unavailable))
	c.kubectl("delete", "pod", "first", "--wait=false")
	until(t, "the claim to be taken back", func() bool { return d.prepared() == 0 })
	until(t, "the pod to be gone", func() bool {
		out, err := c.try("get", "pod", "first", "--ignore-not-found", "-o", "name")
		return err == nil && strings.TrimSpace(out) == ""
	})

	// The device is free for the next one. What a driver offers went with the agent's start, and is
	// offered again.
	c.apply(strings.ReplaceAll(draManifest, "THE_NODE", c.name))
	c.apply(user("second"))
	c.awaitAPIReady("second")
	if n := d.prepared(); n != 1 {
		t.Errorf("%d claims are prepared", n)
	}
	c.kubectl("delete", "pod", "second", "--wait=false")
	until(t, "the second claim to be taken back", func() bool { return d.prepared() == 0 })
	if left, _ := filepath.Glob(cdiFolder + "/" + d.Name + "-*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
