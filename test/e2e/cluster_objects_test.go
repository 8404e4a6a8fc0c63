//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

const objectsManifest = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {greeting: hi, file.txt: "first\n", old: ""}
binaryData: {raw: /wAB}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {user: ann, password: "p@ss"}
---
apiVersion: v1
kind: Pod
metadata:
  name: reader
  labels: {app: reader, tier: "1"}
  annotations: {note: "a \"quoted\" word"}
spec:
  nodeSelector: {kubernetes.io/hostname: THE_NODE}
  securityContext: {fsGroup: 2000}
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - {name: conf, configMap: {name: conf}}
  - {name: some, configMap: {name: conf, defaultMode: 0400, items: [{key: file.txt, path: deep/er.txt}]}}
  - {name: perhaps, configMap: {name: absent, optional: true}}
  - {name: keys, secret: {secretName: keys, defaultMode: 0440}}
  - name: down
    downwardAPI:
      items:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: note, fieldRef: {fieldPath: "metadata.annotations['note']"}}
      - {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}
  - name: all
    projected:
      sources:
      - configMap: {name: conf, items: [{key: greeting, path: greeting}]}
      - secret: {name: keys, items: [{key: user, path: user}]}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - serviceAccountToken: {path: token, audience: somebody, expirationSeconds: 600}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    envFrom:
    - {configMapRef: {name: conf}, prefix: CONF_}
    - {secretRef: {name: absent, optional: true}}
    env:
    - {name: GREETING, valueFrom: {configMapKeyRef: {name: conf, key: greeting}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: keys, key: password}}}
    - {name: COMPOSED, value: "$(GREETING) $(PASSWORD) $$(GREETING)"}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
    - {name: conf, mountPath: /conf}
    - {name: some, mountPath: /some}
    - {name: perhaps, mountPath: /perhaps}
    - {name: keys, mountPath: /keys}
    - {name: down, mountPath: /down}
    - {name: all, mountPath: /all}
`

// Config maps, secrets, the pod's own fields and its service account are in files and in the
// environment.
func TestClusterObjects(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.apply(objectsManifest)
	p := c.awaitAPIReady("reader").named("reader")

	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	for file, want := range map[string]string{
		"/conf/greeting": "hi", "/conf/file.txt": "first\n", "/conf/raw": "\xff\x00\x01", "/some/deep/er.txt": "first\n",
		"/keys/user": "ann", "/keys/password": "p@ss",
		"/down/labels": "app=\"reader\"\ntier=\"1\"", "/down/note": `a "quoted" word`, "/down/memory": "64",
		"/all/greeting": "hi", "/all/user": "ann", "/all/name": "reader",
		account + "/namespace": c.namespace,
		account + "/ca.crt":    c.kubectl("get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`),
	} {
		if got := c.exec("reader", "/usr/bin/cat", file); got != want {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
	for dir, want := range map[string]string{"/some": "deep\n", "/perhaps": "", "/conf": "file.txt\ngreeting\nold\nraw\n"} {
		if got := c.exec("reader", "/usr/bin/ls", dir); got != want {
			t.Errorf("%s has the files %q, want %q", dir, got, want)
		}
	}
	// The volumes' group may read what their owner may.
	for file, want := range map[string]string{"/conf/greeting": "644 2000\n", "/keys/user": "440 2000\n", "/some/deep/er.txt": "440 2000\n"} {
		if got := c.exec("reader", "/usr/bin/stat", "-L", "-c", "%a %g", file); got != want {
			t.Errorf("%s has mode and group %q, want %q", file, got, want)
		}
	}

	environment := "\n" + c.exec("reader", "/usr/bin/env")
	for name, want := range map[string]string{
		"CONF_greeting": "hi", "GREETING": "hi", "PASSWORD": "p@ss", "COMPOSED": "hi p@ss $(GREETING)", "POD": "reader", "NAMESPACE": c.namespace,
		"POD_UID": string(p.UID), "NODE": c.name, "ACCOUNT": "default", "POD_IP": p.Status.PodIP, "HOST_IP": p.Status.HostIP, "TIER": "1", "CPU": "500",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOSTNAME": "reader",
	} {
		wantText(t, "the environment", environment, "\n"+name+"="+want+"\n")
	}

	c.wantTokenOf(p, c.exec("reader", "/usr/bin/cat", account+"/token"), "https://kubernetes.default.svc")
	c.wantTokenOf(p, c.exec("reader", "/usr/bin/cat", "/all/token"), "somebody")
	if got := c.plane.mustKubectl("", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", "--token", c.exec("reader", "/usr/bin/cat", account+"/token")); got == "" {
		t.Error("the API server does not know whose token it is")
	}
}

// wantTokenOf checks that a service account token is bound to the pod and is for the audience.
func (c *cluster) wantTokenOf(p *v1.Pod, token, audience string) {
	c.t.Helper()
	var claims struct {
		Audience   []string `json:"aud"`
		Subject    string   `json:"sub"`
		Kubernetes struct {
			Pod  struct{ UID string }
			Node struct{ Name string }
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		c.t.Errorf("this is no token: %q", token)
		return
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(b, &claims)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if len(claims.Audience) != 1 || !strings.HasPrefix(claims.Audience[0], strings.TrimSuffix(audience, ".svc")) || claims.Subject != "system:serviceaccount:"+c.namespace+":default" ||
		claims.Kubernetes.Pod.UID != string(p.UID) || claims.Kubernetes.Node.Name != c.name {
		c.t.Errorf("the token for %s says %s", audience, b)
	}
}

// Mounted objects follow what the API has, all files of a volume in one step; environments stay as
// they were.
func TestClusterObjectsChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.apply(objectsManifest)
	p := c.awaitAPIReady("reader").named("reader")
	volume := filepath.Join(c.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~configmap/conf")
	before, err := os.Readlink(volume + "/..data")
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl("patch", "configmap", "conf", "-p", `{"data": {"file.txt": "second\n", "greeting": "hey", "old": null, "new": "there"}}`)
	c.kubectl("patch", "secret", "keys", "-p", `{"stringData": {"user": "bob"}}`)
	c.kubectl("label", "pod", "reader", "tier=2", "--overwrite")
	follows := func(file, want string) {
		t.Helper()
		// A minute of the configuration's syncFrequency, and what it is varied by.
		c.awaitWithin(file+" to be "+want, func() bool {
			got := c.kubectlIn("", "exec", "reader", "--", "/usr/bin/cat", file)
			return got.code == 0 && got.out == want
		})
	}
	follows("/conf/file.txt", "second\n")
	if got := c.exec("reader", "/usr/bin/ls", "/conf"); got != "file.txt\ngreeting\nnew\nraw\n" {
		t.Errorf("after the change the volume has the files %q", got)
	}
	if now, err := os.Readlink(volume + "/..data"); err != nil || now == before {
		t.Errorf("the volume was changed within %q, error %v; want a new folder in one step", now, err)
	}
	follows("/keys/user", "bob")
	follows("/down/labels", "app=\"reader\"\ntier=\"2\"")
	follows("/all/user", "bob")
	follows("/all/greeting", "hey")
	wantText(t, "the environment", c.exec("reader", "/usr/bin/env"), "GREETING=hi\n", "TIER=1\n")
	now, _ := c.apiPods()
	if got, want := container(now.named("reader"), "main"), container(p, "main"); got.ContainerID != want.ContainerID || got.RestartCount != 0 {
		t.Errorf("the container is %+v, was %+v", got, want)
	}
}

// A volume that can no longer be made as its objects are now keeps what it has, and holds up
// nothing else of its pod.
func TestClusterObjectsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.apply(objectsManifest)
	p := c.awaitAPIReady("reader").named("reader")
	c.kubectl("patch", "configmap", "conf", "-p", `{"data": {"greeting": null}}`)
	c.awaitEvent("reader", "FailedMount", "greeting")
	c.kubectl("patch", "secret", "keys", "-p", `{"stringData": {"password": "other"}}`)
	c.awaitWithin("the sound volume to follow", func() bool {
		got := c.kubectlIn("", "exec", "reader", "--", "/usr/bin/cat", "/keys/password")
		return got.code == 0 && got.out == "other"
	})
	if got := c.exec("reader", "/usr/bin/cat", "/all/greeting"); got != "hi" {
		t.Errorf("the volume that lost its key has %q", got)
	}
	now, _ := c.apiPods()
	if got, want := container(now.named("reader"), "main"), container(p, "main"); got.ContainerID != want.ContainerID || !isReady(now.named("reader")) {
		t.Errorf("the container is %+v, was %+v", got, want)
	}
}

// A pod waits for what it needs, says so, and runs once it is there.
func TestClusterWaitingPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	volume := c.helloPod("volume", "serve")
	volume.Spec.Volumes = []v1.Volume{{Name: "conf", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "late"}}}}}
	volume.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "conf", MountPath: "/conf"}}
	environment := c.helloPod("environment", "serve")
	environment.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "late"}}}}
	image := c.helloPod("image", "serve")
	image.Spec.Containers[0].Image = unknownImage
	never := c.helloPod("never", "serve")
	never.Spec.Containers[0].Image, never.Spec.Containers[0].ImagePullPolicy = unknownImage, v1.PullNever
	command := c.helloPod("command")
	command.Spec.Containers[0].Command = []string{"/nothing"}
	c.create(volume, environment, image, never, command)

	waits := func(pod string, reasons ...string) {
		t.Helper()
		for _, reason := range reasons {
			c.awaitAPI(pod+" to wait as "+reason, func(p pods) bool {
				s := container(p.named(pod), "main")
				return s.State.Waiting != nil && s.State.Waiting.Reason == reason
			})
		}
	}
	waits("volume", "ContainerCreating")
	c.awaitEvent("volume", "FailedMount", `"late" not found`)
	waits("environment", "CreateContainerConfigError")
	c.awaitEvent("environment", "Failed", `"late" not found`)
	c.awaitEvent("image", "Failed", unknownImage)
	c.awaitEvent("image", "BackOff", unknownImage)
	waits("image", "ImagePullBackOff")
	waits("never", "ErrImageNeverPull")
	c.awaitEvent("command", "Failed", "/nothing")

	described := c.kubectl("describe", "pod", "image")
	wantText(t, "kubectl describe pod", described, "Scheduled", "Pulling", "Failed", "ErrImagePull", "BackOff", "ImagePullBackOff", "kubelet", "Successfully assigned")
	now, _ := c.apiPods()
	if v := now.named("volume"); v.Status.Phase != v1.PodPending || podCondition(v, v1.PodReadyToStartContainers).Status != v1.ConditionFalse {
		t.Errorf("the pod without its volume is %s, its conditions %v", v.Status.Phase, v.Status.Conditions)
	}

	c.kubectl("create", "configmap", "late", "--from-literal=a=b")
	c.kubectl("create", "secret", "generic", "late", "--from-literal=LATE=now")
	c.awaitWithin("the pods that waited for objects to be ready", func() bool {
		now, _ := c.apiPods()
		return now.ready("volume", "environment")
	})
	started := c.kubectl("describe", "pod", "volume")
	wantText(t, "kubectl describe pod", started, "FailedMount", "Pulled", "Created", "Started", "IP:", " containerd://")
	// A pod that cannot start ends as well as others.
	c.kubectl("delete", "pod", "--all")
	c.awaitAPI("all pods to go", func(p pods) bool { return len(p) == 0 })
}
