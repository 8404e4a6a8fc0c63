//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// localObjects is a ConfigMap and a Secret.
func localObjects(page string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data:
  port: "8081"
  page: %s
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: open sesame}
`, page)
}

// localReader is a pod that listens where the ConfigMap says, and serves what ConfigMap and Secret
// hold. Its other container has the folders of all pods. THE_ROOT stands for the agent's root
// directory.
const localReader = `apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - {name: pods, hostPath: {path: THE_ROOT/pods}}
  - name: all
    projected:
      sources:
      - configMap: {name: conf, items: [{key: page, path: page}]}
      - secret: {name: keys}
  - name: keys
    secret: {secretName: keys, defaultMode: 0400}
  - name: perhaps
    configMap: {name: absent, optional: true}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve", "-dir", "/all"]
    env:
    - {name: PORT, valueFrom: {configMapKeyRef: {name: conf, key: port}}}
    envFrom:
    - {prefix: KEY_, secretRef: {name: keys}}
    volumeMounts:
    - {name: all, mountPath: /all}
    - {name: keys, mountPath: /keys}
    - {name: perhaps, mountPath: /perhaps}
  - name: hostile
    image: berth.local/hello:1
    args: ["serve", "-port", "8082"]
    securityContext: {privileged: true}
    env:
    - {name: UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
    - {name: pods, mountPath: /pods}
`

// Pods refer to ConfigMaps and Secrets of manifests: they wait for them, show their changes, and
// keep what they have over an end of the agent.
func TestLocalObjects(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("reader.yaml", strings.ReplaceAll(localReader, "THE_ROOT", n.place.Root))
	n.write("env.yaml", strings.Replace(manifest("env", "serve"), "    args:", "    envFrom: [{configMapRef: {name: conf}}]\n    args:", 1))
	n.write("optional.yaml", strings.Replace(manifest("optional", "serve"), "    args:", "    envFrom: [{configMapRef: {name: conf, optional: true}}]\n    args:", 1))
	a := n.start()
	n.await("a container to wait for its environment", func(p pods) bool {
		env := p.named("env")
		if env == nil || !p.ready("optional") {
			return false
		}
		waiting := container(env, "main").State.Waiting
		return waiting != nil && waiting.Reason == "CreateContainerConfigError" && waiting.Message == `configmap "conf" not found`
	})
	until(t, "a pod to wait for its volumes", func() bool {
		said := n.command(n.ctx, "explain", "--all", "reader").out
		return strings.Contains(said, `MountVolume.SetUp failed for volume "keys" : secret "keys" not found`)
	})

	// They come, and everything starts by itself.
	n.write("objects.yaml", localObjects("one"))
	now := n.awaitReady("env", "reader", "optional")
	env, reader := now.named("env"), now.named("reader")
	served := "http://" + reader.Status.PodIP + ":8081/files/"
	page := func(want string) func() bool {
		return func() bool {
			got, err := get(served + "page")
			return err == nil && got == want
		}
	}
	until(t, "the ConfigMap to be served on its port", page("one"))
	if got := answers(t, served+"password"); got != "open sesame" {
		t.Errorf("the Secret is served as %q", got)
	}
	keys := filepath.Join(n.place.Root, "pods", string(reader.UID), "volumes/kubernetes.io~secret/keys/password")
	var st unix.Stat_t
	if err := unix.Stat(keys, &st); err != nil || st.Mode&0o777 != 0o400 {
		t.Errorf("%s has mode %o, error %v; want 0400", keys, st.Mode&0o777, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(keys, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("%s is on filesystem %#x, error %v; want a tmpfs", keys, fs.Type, err)
	}

	// An edit reaches the volumes, with and without an agent; nothing is restarted.
	n.write("objects.yaml", localObjects("two"))
	until(t, "the edited ConfigMap to be served", page("two"))
	a.kill()
	n.write("objects.yaml", localObjects("three"))
	n.start()
	until(t, "the ConfigMap to be served that was edited meanwhile", page("three"))
	n.write("objects.yaml", localObjects("four")+"---\nkind: [\n")
	until(t, "the good part of a manifest to be served", page("four"))
	n.write("objects.yaml", "kind: [\n")
	n.await("the broken manifest to be told of", func(pods) bool {
		problems := n.problems()
		return len(problems) == 1 && strings.Contains(problems[0].Message, "the last good version stays: ConfigMap default/conf, Secret default/keys")
	})
	wantUntouched(t, n, env)
	wantUntouched(t, n, reader)

	// Without them, what runs goes on, and what starts waits.
	n.remove("objects.yaml")
	n.await("the manifest to be gone", func(pods) bool { return len(n.problems()) == 0 })
	n.signal(env, "main", unix.SIGTERM)
	n.await("the container to wait again", func(p pods) bool {
		c := container(p.named("env"), "main")
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError"
	})
	wantUntouched(t, n, reader)
	if !page("four")() {
		t.Error("the volume does not show any more what it showed")
	}
	n.write("objects.yaml", localObjects("five"))
	env = n.await("the container to run again", func(p pods) bool {
		return p.ready("env") && container(p.named("env"), "main").RestartCount == 1
	}).named("env")
	until(t, "the volume to show the new ConfigMap", page("five"))

	// A container has the pod's volumes lead to the host, before an update and before the clean-up:
	// nothing is written or removed there.
	host := filepath.Join(n.place.Dir, "host")
	must(t, os.Mkdir(host, 0o700), os.WriteFile(filepath.Join(host, "page"), []byte("precious"), 0o600))
	lead := func() {
		t.Helper()
		got := n.execIn("", "reader", "-c", "hostile", "--", "/usr/bin/sh", "-c",
			"cd /pods/$UID/volumes && for v in */all */keys */perhaps; do /usr/bin/ln -sfnT "+host+" $v/..data && /usr/bin/ln -sT "+host+" $v/..data_tmp || exit; done")
		if got != (answer{}) {
			t.Fatalf("the container could not change its volumes: %+v", got)
		}
	}
	wantHost := func() {
		t.Helper()
		if entries, err := os.ReadDir(host); err != nil || len(entries) != 1 || readText(t, filepath.Join(host, "page")) != "precious" {
			t.Errorf("the host's folder: %v, %v", entries, err)
		}
	}
	lead()
	n.write("objects.yaml", localObjects("six"))
	until(t, "the volume that led to the host to show the new ConfigMap", page("six"))
	wantHost()
	lead()

	gone := []traces{n.traces(env), n.traces(reader)}
	for _, f := range []string{"reader.yaml", "env.yaml", "optional.yaml"} {
		n.remove(f)
	}
	n.awaitGone(env.UID)
	n.awaitGone(reader.UID)
	for _, tr := range gone {
		n.wantGone(tr)
	}
	wantHost()
}

// The pod of examples/settings runs and serves what its objects hold.
func TestSettingsExample(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := freePort(t)
	for _, name := range []string{"page.yaml", "server.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../examples/settings", name))
		if err != nil {
			t.Fatal(err)
		}
		n.write(name, strings.ReplaceAll(string(text), "hostPort: 8089", fmt.Sprintf("hostPort: %d", port)))
	}
	n.start()
	n.awaitReady("server")
	if got := answers(t, fmt.Sprintf("http://localhost:%d/files/hello.txt", port)); got != "Hello from a ConfigMap.\n" {
		t.Errorf("the page is %q", got)
	}
}

// What only a cluster has is refused with what to do instead.
func TestClusterObjectsAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("account.yaml", manifest("account", "serve")+"  serviceAccountName: robot\n")
	n.write("web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n---\n"+manifest("web", "serve"))
	n.start()
	n.awaitReady("web")
	said := map[string]string{}
	for _, p := range n.problems() {
		said[filepath.Base(p.Path)] = string(p.Severity) + ": " + p.Message
	}
	for file, want := range map[string]string{
		"account.yaml": "error: spec.serviceAccountName: Forbidden: needs an API server, which issues the tokens: remove it",
		"web.yaml": `warning: kind "Service" is ignored outside of a cluster: there are no service addresses; reach the pod at its IP, or publish a port ` +
			"of it with hostPort",
	} {
		if said[file] != want {
			t.Errorf("%s: %q, want %q", file, said[file], want)
		}
	}
	if len(said) != 2 {
		t.Errorf("problems: %v", said)
	}
}
