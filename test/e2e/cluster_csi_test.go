//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"berth/internal/storage/csi/csitest"
)

// THE_NODE stands for the name of the node.
const clusterCSIManifest = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: THE_NODE.csi.example.com}
spec: {attachRequired: true}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: THE_NODE-csi}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: THE_NODE-csi
  csi: {driver: THE_NODE.csi.example.com, volumeHandle: handle}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: THE_NODE-own}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: THE_NODE-own
  csi: {driver: THE_NODE.csi.example.com, volumeHandle: own}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: THE_NODE-csi, volumeName: THE_NODE-csi, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeSelector: {kubernetes.io/hostname: THE_NODE}
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: disk, persistentVolumeClaim: {claimName: disk}}
  - name: own
    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: THE_NODE-own, resources: {requests: {storage: 1Gi}}}}}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    volumeMounts: [{name: disk, mountPath: /disk}, {name: own, mountPath: /own}]
`

// A node tells the cluster of its driver, has volumes attached by the cluster's controller before
// it mounts them, and lets them be detached only when they are taken down; with no more rights than
// nodes have. One is a claim's that others may have later, the other one goes with its pod. Agent
// or driver are killed in each call.
func TestClusterCSI(t *testing.T) {
	c := newCluster(t)
	d := c.newDriver()
	d.Name, d.NodeID, d.MaxVolumes, d.Expands = c.name+".csi.example.com", "id-of-"+c.name, 7, true
	volume := c.name + "-csi"
	t.Cleanup(func() {
		c.tidy("delete", "--ignore-not-found", "--wait=false", "pv/"+volume, "pv/"+c.name+"-own", "csidriver/"+d.Name)
	})
	d.start()
	a := c.startMember()
	c.awaitWithin("the driver in the CSINode", func() bool {
		out, err := c.try("get", "csinode/"+c.name, "-o", "jsonpath={.spec.drivers[0].nodeID} {.spec.drivers[0].allocatable.count}")
		return err == nil && out == d.NodeID+" 7"
	})
	c.apply(strings.ReplaceAll(clusterCSIManifest, "THE_NODE", c.name))

	// Why the agent learns what is attached from its Node, and asks for a VolumeAttachment when it
	// needs one.
	for _, what := range []string{"volumeattachments", "csinodes/" + c.name} {
		if out, err := c.try("auth", "can-i", "watch", what, "--as=system:node:"+c.name, "--as-group=system:nodes"); err == nil || !strings.HasPrefix(out, "no") {
			t.Errorf("may a node watch %s? %q, %v", what, out, err)
		}
	}
	// The test stands in for the external attacher.
	var attachments []string
	c.awaitWithin("the VolumeAttachments", func() bool {
		out, err := c.try("get", "volumeattachments", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.nodeName=="%s")].metadata.name}`, c.name))
		attachments = strings.Fields(out)
		return err == nil && len(attachments) == 2
	})
	if n := len(d.calls("NodeStageVolume")); n != 0 {
		t.Errorf("the volume was staged %d times before it was attached", n)
	}
	d.breakNext("NodeStageVolume", csitest.HangAfter)
	d.breakNext("NodePublishVolume", csitest.Die)
	for _, attachment := range attachments {
		c.kubectl("patch", "volumeattachment", attachment, "--subresource=status", "--type=merge", "-p", `{"status":{"attached":true,"attachmentMetadata":{"device":"one"}}}`)
	}
	d.awaitBroken("NodeStageVolume")
	a.kill()
	a = c.startMember()
	d.awaitBroken("NodePublishVolume")
	d.awaitEnd()
	d.start()
	c.awaitAPIReady("user")
	if calls := d.calls("NodeStageVolume"); len(calls) == 0 || calls[0].PublishContext["device"] != "one" {
		t.Errorf("the volume was staged with %+v", calls)
	}
	inUse := func() string {
		return c.kubectl("get", "node/"+c.name, "-o", "jsonpath={.status.volumesInUse}")
	}
	for _, handle := range []string{"handle", "own"} {
		if got := inUse(); !strings.Contains(got, "kubernetes.io/csi/"+d.Name+"^"+handle) {
			t.Errorf("in use: %s", got)
		}
	}

	// The next agent goes on with what is mounted, makes it as large as the cluster's controller
	// (here the test) has made the volume meanwhile, and takes it down.
	a.kill()
	c.kubectl("patch", "pv/"+volume, "--type=merge", "-p", `{"spec":{"capacity":{"storage":"2Gi"}}}`)
	c.kubectl("patch", "pvc/disk", "--subresource=status", "--type=merge", "-p", `{"status":{"allocatedResources":{"storage":"2Gi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"},
		"conditions":[{"type":"FileSystemResizePending","status":"True"}]}}`)
	a = c.startMember()
	c.awaitWithin("the claim to tell of its size", func() bool {
		out, err := c.try("get", "pvc/disk", "-o", "jsonpath={.status.capacity.storage}{.status.allocatedResourceStatuses}{.status.conditions}")
		return err == nil && out == "2Gi"
	})
	if calls := d.calls("NodeExpandVolume"); len(calls) != 1 || calls[0].Bytes != 2<<30 {
		t.Errorf("the volume was expanded with %+v", calls)
	}
	c.awaitWithin("the events of it", func() bool {
		out, err := c.try("get", "events", "-o", `jsonpath={.items[?(@.reason=="FileSystemResizeSuccessful")].involvedObject.kind}`)
		return err == nil && strings.Contains(out, "Pod") && strings.Contains(out, "PersistentVolumeClaim")
	})
	d.breakNext("NodeUnpublishVolume", csitest.DieAfter)
	d.breakNext("NodeUnstageVolume", csitest.HangAfter)
	c.kubectl("delete", "pod", "user", "--wait=false")
	d.awaitBroken("NodeUnpublishVolume")
	d.awaitEnd()
	d.start()
	d.awaitBroken("NodeUnstageVolume")
	a.kill()
	c.startMember()
	d.awaitNothing()
	c.awaitWithin("the volume not to be in use any more", func() bool { return !strings.Contains(inUse(), d.Name) })
	if n := len(d.calls("NodeUnstageVolume")); n == 0 {
		t.Error("the volume was never unstaged")
	}
}
