//go:build e2e

package localapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/localapi"
	"berth/internal/localapi/manifests"
)

const volumes = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: small}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /srv/small}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: large}
spec: {capacity: {storage: 9Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /srv/large}, persistentVolumeReclaimPolicy: Delete}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: here}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: /srv/here}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n1]}]}]}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made}
provisioner: csi.example.com
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1}}
`

const claims = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: waits}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: local}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: made}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: made}
`

const podOfVolumes = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: main, image: "registry.example/web:1"}]
  volumes:
  - {name: waits, persistentVolumeClaim: {claimName: waits}}
  - name: scratch
    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}
`

// phase waits until an object has a phase.
func (s *server) phase(what, phase string) {
	s.Helper()
	s.must("", []string{"wait", "--for=jsonpath={.status.phase}=" + phase, what, "--timeout=30s"})
}

// TestVolumes has kubectl make volumes and claims, which are bound, kept and given back.
func TestVolumes(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s, stop := start(t, dir)
	s.must("", []string{"wait", "--for=create", "serviceaccount/default", "--timeout=30s"})
	s.must(volumes, []string{"apply", "-f", "-"}, "persistentvolume/small created")
	for _, name := range []string{"small", "large", "here"} {
		s.phase("pv/"+name, "Available")
	}
	s.must(claims, []string{"apply", "-f", "-"}, "persistentvolumeclaim/data created")
	s.phase("pvc/data", "Bound")
	s.must("", []string{"get", "pv"}, "default/data")
	s.must("", []string{"get", "pvc", "data", "-o", "jsonpath={.spec.volumeName} {.status.capacity.storage} {.status.accessModes[0]} {.metadata.annotations}"},
		`large 9Gi ReadWriteOnce {`, `"pv.kubernetes.io/bind-completed":"yes"`, `"pv.kubernetes.io/bound-by-controller":"yes"`)
	s.must("", []string{"wait", `--for=jsonpath={.metadata.annotations.volume\.kubernetes\.io/storage-provisioner}=csi.example.com`, "pvc/made", "--timeout=30s"})
	s.must("", []string{"describe", "pvc", "made"}, "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner 'csi.example.com'")
	s.must("", []string{"describe", "pvc", "waits"}, "Status:        Pending", "waiting for first consumer to be created before binding")

	// A pod is the first consumer, and gets the claim of its ephemeral volume.
	s.must(podOfVolumes, []string{"apply", "-f", "-"}, "pod/web created")
	s.phase("pvc/waits", "Bound")
	s.must("", []string{"wait", "--for=create", "pvc/web-scratch", "--timeout=30s"})
	s.phase("pvc/web-scratch", "Bound")
	s.must("", []string{"get", "pvc", "waits", "web-scratch", "-o", "jsonpath={.items[*].spec.volumeName}"}, "here small")

	// Who starts again finds it done, and changes nothing.
	versions := []string{"get", "pv,pvc", "-o", "jsonpath={.items[*].metadata.resourceVersion}"}
	before := s.must("", versions)
	stop()
	s, _ = start(t, dir)
	s.must("", []string{"create", "namespace", "later"}, "created")
	s.must("", []string{"wait", "--for=create", "serviceaccount/default", "-n", "later", "--timeout=30s"})
	if after := s.must("", versions); after != before {
		t.Errorf("after a restart there are the versions %s, before %s", after, before)
	}

	// What a claim had is given back as the volume says. An ephemeral one goes with its pod.
	s.must("", []string{"delete", "pvc", "data", "--timeout=30s"})
	s.phase("pv/large", "Failed")
	s.must("", []string{"describe", "pv", "large"}, "VolumeFailedDelete", "needs the provisioner that made the volume, and none did")
	s.must("", []string{"delete", "pod", "web", "--force", "--grace-period=0", "--timeout=30s"})
	s.must("", []string{"wait", "--for=delete", "pvc/web-scratch", "--timeout=30s"})
	s.phase("pv/small", "Released")
	s.must(claims, []string{"apply", "-f", "-"}, "persistentvolumeclaim/data created")
	s.must("", []string{"patch", "pv", "large", "--type=json", "-p", `[{"op":"remove","path":"/spec/claimRef"}]`})
	s.phase("pvc/data", "Bound")
	s.must("", []string{"delete", "pv", "small", "--timeout=30s"}, "deleted")
}

// bound waits until a claim is bound, and needs nobody but the agent for it.
func (s *server) bound(namespace, name string) {
	s.Helper()
	c := s.config()
	transport, err := rest.TransportFor(c)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	url := c.Host + "/api/v1/namespaces/" + namespace + "/persistentvolumeclaims?watch=true&fieldSelector=metadata.name%3D" + name
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		s.Fatal(err)
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	for changes := json.NewDecoder(answer.Body); ; {
		var change struct{ Object v1.PersistentVolumeClaim }
		if err := changes.Decode(&change); err != nil {
			s.Fatalf("claim %s is not bound: %v", name, err)
		}
		if change.Object.Status.Phase == v1.ClaimBound {
			return
		}
	}
}

// TestManifestObjects has manifests define objects where nothing can be judged: they are there,
// bound, and go with their file.
func TestManifestObjects(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s, stop := start(t, dir, func(c *localapi.Config) { c.Registry, c.Documents = "", nil })
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	d := manifests.Defined{Namespaces: []string{"pods"}, Objects: []manifests.Object{
		{Path: "/etc/pods/web.yaml", Object: &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "app"}, Data: map[string]string{"a": "b"}}},
		{Path: "/etc/pods/web.yaml", Object: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv/v"}},
		}}},
		{Path: "/etc/pods/web.yaml", Object: &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: size}, VolumeName: "v",
		}}},
	}}
	if err := s.SetManifests(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	s.bound("web", "data") // kubectl would ask for what the API has, which the program that is missing knows
	stop()
	s, stop = start(t, dir)
	s.must("", []string{"get", "configmap", "app", "-n", "web", "-o", "jsonpath={.data} {.metadata.annotations}"}, `{"a":"b"} `, `"berth.dev/manifest":"/etc/pods/web.yaml"`)
	s.must("", []string{"get", "namespace", "web", "pods"}, "Active")
	s.must("", []string{"wait", "--for=create", "serviceaccount/default", "-n", "pods", "--timeout=30s"})

	// The next start has the same manifests, then a file less.
	versions := []string{"get", "pv,pvc,configmap", "-n", "web", "-o", "jsonpath={.items[*].metadata.resourceVersion}"}
	before := s.must("", versions)
	stop()
	s, _ = start(t, dir)
	if err := s.SetManifests(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if after := s.must("", versions); after != before {
		t.Errorf("after a restart there are the versions %s, before %s", after, before)
	}
	s.must("", []string{"create", "configmap", "theirs", "-n", "web"}, "created")
	theirs := manifests.Defined{Objects: []manifests.Object{
		{Path: "/etc/pods/shop.yaml", Object: &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "theirs"}}},
	}}
	if err := s.SetManifests(t.Context(), theirs); err == nil || !strings.Contains(err.Error(), "/etc/pods/shop.yaml: ConfigMap web/theirs: it exists already") {
		t.Errorf("an object of somebody else: %v", err)
	}
	s.must("", []string{"wait", "--for=delete", "configmap/app", "pvc/data", "pv/v", "-n", "web", "--timeout=30s"})
	if err := s.Health(); err == nil || !strings.Contains(err.Error(), "kubectl delete configmaps theirs -n web") {
		t.Errorf("health: %v", err)
	}
	s.must("", []string{"delete", "configmaps", "theirs", "-n", "web"}, "deleted")
	s.must("", []string{"wait", `--for=jsonpath={.metadata.annotations.berth\.dev/manifest}=/etc/pods/shop.yaml`, "configmap/theirs", "-n", "web", "--timeout=30s"})
	if err := s.Health(); err != nil {
		t.Error(err)
	}
}
