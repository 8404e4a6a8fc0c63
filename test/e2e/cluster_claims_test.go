//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// THE_DIR stands for a directory of the node, THE_CLASS for a name that no other test has.
const claimsManifest = `apiVersion: v1
kind: PersistentVolume
metadata: {name: THE_CLASS-disk, annotations: {pv.beta.kubernetes.io/gid: "4321"}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: THE_CLASS-disk
  local: {path: THE_DIR/disk}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [THE_NODE]}]}]}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: THE_CLASS-scratch}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: THE_CLASS-scratch
  hostPath: {path: THE_DIR/scratch}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: THE_CLASS-disk, resources: {requests: {storage: 1Gi}}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: THE_CLASS}
handler: runc
overhead: {podFixed: {memory: 16Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeSelector: {kubernetes.io/hostname: THE_NODE}
  runtimeClassName: THE_CLASS
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - {name: disk, persistentVolumeClaim: {claimName: disk}}
  - name: scratch
    ephemeral:
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOnce], storageClassName: THE_CLASS-scratch, resources: {requests: {storage: 1Gi}}}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
    - {name: disk, mountPath: /disk}
    - {name: scratch, mountPath: /scratch}
`

// A node reads, with no more rights than nodes have, what its pods' claims are bound to and which
// handler a RuntimeClass names; claims of ephemeral volumes are made by the cluster.
func TestClusterClaims(t *testing.T) {
	c := newCluster(t)
	class, dir := "class-"+c.name, filepath.Join(c.place.Dir, "claims")
	must(t, os.MkdirAll(filepath.Join(dir, "disk"), 0o700), os.Mkdir(filepath.Join(dir, "scratch"), 0o777))
	must(t, os.WriteFile(filepath.Join(dir, "disk/file"), []byte("kept"), 0o600))
	t.Cleanup(func() {
		c.tidy("delete", "--ignore-not-found", "--wait=false", "pv/"+class+"-disk", "pv/"+class+"-scratch", "runtimeclass/"+class)
	})
	a := c.startMember()
	c.apply(strings.NewReplacer("THE_CLASS", class, "THE_DIR", dir).Replace(claimsManifest))
	p := c.awaitAPIReady("user").named("user")
	if got := p.Spec.Overhead.Memory().String(); got != "16Mi" {
		t.Errorf("the pod's overhead is %s, want that of its class", got)
	}
	if got := c.exec("user", "/usr/bin/stat", "-c", "%a %g", "/disk/file"); got != "660 4242\n" {
		t.Errorf("the file has mode and group %q", got)
	}
	if got := c.exec("user", "/usr/bin/id", "-G"); !strings.Contains(" "+strings.TrimSpace(got)+" ", " 4321 ") {
		t.Errorf("the container is in the groups %q, want the volume's as well", got)
	}
	c.exec("user", "/usr/bin/touch", "/scratch/made")
	if _, err := os.Stat(filepath.Join(dir, "scratch/made")); err != nil {
		t.Error(err)
	}

	// The next agent finds what is mounted, and starts a container anew with it.
	a.kill()
	c.startMember()
	c.signal(p, "main", unix.SIGKILL)
	c.awaitAPI("the container to run again", func(now pods) bool {
		p := now.named("user")
		return p != nil && container(p, "main").RestartCount == 1 && now.ready("user")
	})
	if got := c.exec("user", "/usr/bin/cat", "/disk/file"); got != "kept" {
		t.Errorf("the file has %q", got)
	}
	c.kubectl("delete", "pod", "user")
	if left, err := os.ReadDir(filepath.Join(dir, "disk")); err != nil || len(left) != 1 {
		t.Errorf("the data of the volume: %v, %v", left, err)
	}
}
