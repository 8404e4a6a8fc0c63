//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// cardUser is a pod with a claim of the template.
func cardUser(name, template string) string {
	return fmt.Sprintf(deviceUser, name, "resourceClaims: [{name: card, resourceClaimTemplateName: "+template+"}]", "claims: [{name: card}]")
}

// deviceUser is a pod of a name, with something in its spec and in the resources of its container,
// which can run the host's programs.
const deviceUser = `apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: THE_NODE}
  terminationGracePeriodSeconds: 1
  volumes: [{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /lib}}, {name: lib64, hostPath: {path: /lib64}}]
  %s
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    resources: {%s}
    volumeMounts: [{name: usr, mountPath: /usr}, {name: lib, mountPath: /lib}, {name: lib64, mountPath: /lib64}]
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

	user := func(name string) string { return cardUser(name, "card") }
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

// An extended resource that a class of devices stands for is a claim that the scheduler makes
// (KEP-5004): its pod gets the device, though no device plugin offers any and the Node names none.
// Who has administrator's access gets the same device meanwhile (KEP-5018). A pod that asks for
// more than there is waits for the scheduler and is not refused here.
func TestClusterExtendedResourceByClaim(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	d := c.newDRADriver(c.name + ".dra.example.com")
	t.Cleanup(func() {
		c.tidy("delete", "--ignore-not-found", "--wait=false", "deviceclass/"+c.name, "resourceslice/"+c.name+"-dra")
	})
	a := c.startMember()
	d.start()
	resource := "example.com/" + c.name
	c.apply(strings.Replace(draManifest, "\nspec: {selectors", "\nspec: {extendedResourceName: "+resource+", selectors", 1))
	c.kubectl("label", "namespace", c.namespace, "resource.kubernetes.io/admin-access=true")
	c.apply(`apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: watches}
spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: THE_NODE, adminAccess: true}}]}}}
`)
	asks := func(name string) string {
		return fmt.Sprintf(deviceUser, name, "hostNetwork: false", `limits: {"`+resource+`": 1}`)
	}

	c.apply(asks("first"))
	first := c.awaitAPIReady("first").named("first")
	claim := first.Status.ExtendedResourceClaimStatus
	if claim == nil || len(claim.RequestMappings) != 1 || claim.RequestMappings[0].ResourceName != resource {
		t.Fatalf("the scheduler has made of the resource: %+v", claim)
	}
	hasDevice := func(pod string) {
		t.Helper()
		if got := c.exec(pod, "/usr/bin/env"); strings.Count(got, "\nDRA_") != 1 {
			t.Errorf("the container of %s has the variables %q", pod, got)
		}
	}
	hasDevice("first")
	wantText(t, "berth resources", c.berth("resources"), claim.ResourceClaimName, d.Name+"/pool/device")

	c.apply(asks("second"))
	c.apply(cardUser("watcher", "watches"))
	c.awaitAPIReady("watcher")
	hasDevice("watcher")
	if n := d.prepared(); n != 2 {
		t.Errorf("%d claims are prepared, want that of the resource and that of who watches", n)
	}

	// A container that is started again by the next agent has its device.
	a.kill()
	c.startMember()
	c.signal(first, "main", unix.SIGKILL)
	c.awaitAPI("the container to run again", func(now pods) bool {
		p := now.named("first")
		return p != nil && container(p, "main").RestartCount == 1 && now.ready("first")
	})
	hasDevice("first")

	// The next pod has the device when the first has gone.
	c.kubectl("delete", "pod", "first")
	_, offers, _ := strings.Cut(draManifest, "---\n")
	c.apply(offers) // which may have gone with the agent's start
	c.awaitAPIReady("second")
	hasDevice("second")
	c.kubectl("delete", "pod", "second", "watcher", "--wait=false")
	until(t, "all claims to be taken back", func() bool { return d.prepared() == 0 })
}
