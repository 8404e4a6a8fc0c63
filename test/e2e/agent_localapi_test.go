//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// apiNode is a node whose agent serves the Kubernetes API.
type apiNode struct{ *node }

func newAPINode(t *testing.T) apiNode {
	t.Helper()
	return apiNode{newNode(t)}
}

// try runs kubectl with the agent's kubeconfig.
func (n apiNode) try(in string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(n.ctx, patience(30*time.Second))
	defer cancel()
	c := exec.CommandContext(ctx, os.Getenv("CONTROLPLANE"), append([]string{"kubectl", "--kubeconfig", n.place.Run + "/kubeconfig", "--cache-dir", n.place.Dir + "/cache"}, args...)...)
	c.Stdin = strings.NewReader(in)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// kubectl is try that must succeed.
func (n apiNode) kubectl(args ...string) string {
	n.t.Helper()
	out, err := n.try("", args...)
	must(n.t, err)
	return out
}

// What a user of a cluster does with kubectl works on one machine without one: a pod is made, has
// its objects and its token, is looked into, and goes. It outlives the agent, and what was asked of
// it while no agent was there is done by the next one.
func TestLocalAPIPods(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	a := n.start()
	_, err := n.try(strings.NewReplacer("THE_NODE", hostName(t)).Replace(objectsManifest), "apply", "-f", "-")
	must(t, err)
	n.kubectl("run", "web", "--image", helloImage, "--", "serve")
	n.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/reader", "--timeout=30s")
	if got := n.kubectl("exec", "reader", "--", "/usr/bin/cat", "/conf/greeting", "/keys/password"); got != "hip@ss" {
		t.Errorf("the reader has %q", got)
	}
	if got := n.kubectl("exec", "reader", "--", "/usr/bin/cat", "/all/token"); strings.Count(got, ".") != 2 {
		t.Errorf("the token of the reader is %q", got)
	}
	wantText(t, "kubectl logs", n.kubectl("logs", "web"), "web listening on")
	wantText(t, "kubectl get events", n.kubectl("get", "events", "--field-selector", "involvedObject.name=web"), "Started")
	n.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=20s")
	wantText(t, "kubectl get nodes", n.kubectl("get", "nodes"), hostName(t), " Ready ")
	until(t, "kubectl top to show web", func() bool {
		got, err := n.try("", "top", "pod", "web", "--no-headers")
		return err == nil && strings.HasPrefix(got, "web ") && strings.Contains(got, "Mi")
	})
	wantText(t, "kubectl top node", n.kubectl("top", "node"), hostName(t))
	wantText(t, "the page of web", n.forwarded("web"), "Hello from web")

	// The journal is asked for by the API, by one who may do nothing else.
	wantText(t, "the explanation", n.kubectl("get", "--raw", "/apis/berth.dev/v1/namespaces/default/pods/web/explain"), `"kind":"Explanation"`, `"decision":"container started"`)
	n.berth("kubeconfig", "--user", "asker", "--namespace", "default", "--verbs", "get", "--resources", "pods/explain", "-o", n.place.Dir+"/asker")
	wantText(t, "berth explain", n.berth("explain", "web", "--kubeconfig", n.place.Dir+"/asker"), "Pod default/web is ready")
	if got := n.command(n.ctx, "explain", "web", "-n", "kube-system", "--kubeconfig", n.place.Dir+"/asker"); got.code != 1 || !strings.Contains(got.errOut, `cannot get resource "pods/explain"`) {
		t.Errorf("a pod of another namespace: %v", got)
	}
	if got := n.command(n.ctx, "get", "pods", "--kubeconfig", n.place.Dir+"/asker"); got.code != 1 || !strings.Contains(got.errOut, "Forbidden") {
		t.Errorf("pods: %v", got)
	}

	before := n.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	a.kill()
	a = n.start()
	if after := n.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}"); after != before {
		t.Errorf("the container was %s, and is %s", before, after)
	}
	n.kubectl("patch", "configmap", "conf", "-p", `{"data":{"greeting":"ho"}}`)
	until(t, "the reader to see the change", func() bool {
		got, err := n.try("", "exec", "reader", "--", "/usr/bin/cat", "/conf/greeting")
		return err == nil && got == "ho"
	})
	n.kubectl("delete", "pod", "web", "--wait=false")
	a.end(unix.SIGTERM)
	n.start()
	until(t, "web to be gone", func() bool {
		got, err := n.try("", "get", "pods", "-o", "name")
		return err == nil && got == "pod/reader\n"
	})
	n.kubectl("delete", "pod", "reader")
	until(t, "nothing to be left of the pods", func() bool { return n.berth("get", "pods", "-A") == "" })
}

// Pods of manifests are pods of the API, under their own names. They come again when somebody
// deletes them there, with their namespace.
func TestLocalAPIManifests(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	n.write("web.yaml", strings.Replace(manifest("web", "serve"), "  name: web\n", "  name: web\n  namespace: site\n", 1))
	n.start()
	until(t, "web to be ready", func() bool {
		got, err := n.try("", "get", "pod", "web", "-n", "site", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
		return err == nil && got == "True"
	})
	uid := n.kubectl("get", "pod", "web", "-n", "site", "-o", "jsonpath={.metadata.uid}")
	id := n.kubectl("get", "pod", "web", "-n", "site", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	n.kubectl("delete", "namespace", "site")
	until(t, "web to come again", func() bool {
		got, err := n.try("", "get", "pod", "web", "-n", "site", "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID}")
		return err == nil && !strings.HasPrefix(got, uid) && strings.HasSuffix(got, " "+id)
	})
	wantText(t, "kubectl get namespaces", n.kubectl("get", "namespace", "site"), "Active")
	// A refused one is a pod, too, which says why; objects of manifests are those of the API.
	n.write("bad.yaml", strings.Replace(manifest("bad"), "image:", "imagee:", 1))
	n.write("conf.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf, namespace: site}\ndata: {a: b}\n")
	until(t, "the refused manifest to show", func() bool {
		got, err := n.try("", "get", "pod", "bad.yaml", "--no-headers")
		return err == nil && strings.Contains(got, " InvalidManifest ")
	})
	wantText(t, "kubectl describe pod", n.kubectl("describe", "pod", "bad.yaml"), "imagee")
	until(t, "the ConfigMap to be there", func() bool {
		got, err := n.try("", "get", "configmap", "conf", "-n", "site", "-o", "jsonpath={.data.a}")
		return err == nil && got == "b"
	})
	n.write("bad.yaml", manifest("bad", "serve"))
	until(t, "the mended manifest to run", func() bool {
		got, err := n.try("", "get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.name}={.status.phase} {end}")
		return err == nil && got == "bad=Running "
	})
	for _, name := range []string{"web.yaml", "bad.yaml", "conf.yaml"} {
		n.remove(name)
	}
	until(t, "all of them to be gone", func() bool {
		got, err := n.try("", "get", "pods,configmaps", "-A", "-o", "name", "--field-selector", "metadata.name!=kube-root-ca.crt")
		return err == nil && got == ""
	})
}

// A port that somebody else has, and a file that cannot be read, are told and end nothing.
func TestLocalAPIFaults(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	n.write("web.yaml", manifest("web", "serve"))
	a := n.start("--local-api-address", l.Addr().String())
	until(t, "berth check to tell of the port", func() bool {
		said := n.command(n.ctx, "check").String()
		return strings.Contains(said, "LocalAPI") && strings.Contains(said, l.Addr().String())
	})
	n.awaitReady("web")
	if _, err := os.Stat(n.place.Run + "/kubeconfig"); !os.IsNotExist(err) {
		t.Errorf("there is a kubeconfig: %v", err)
	}
	n.awaitRows(nil, `web +1/1 +Running`) // the view has them
	if said := n.command(n.ctx, "delete", "pod", "web"); said.code == 0 || !strings.Contains(said.errOut, `"berth check" says why the local API does not listen on a port`) {
		t.Errorf("a write said %v", said)
	}
	a.end(unix.SIGTERM)

	must(t, os.WriteFile(n.place.Root+"/api/objects.db", []byte("this is no file of objects"), 0o600))
	n.start()
	until(t, "berth check to tell of the file", func() bool {
		said := n.command(n.ctx, "check").String()
		return strings.Contains(said, "LocalAPI") && strings.Contains(said, "api/objects.db")
	})
	n.awaitReady("web")
	n.awaitRows(nil, `web +1/1 +Running`)
	n.remove("web.yaml")
	n.await("web to go", func(p pods) bool { return len(p) == 0 })
}

// forwarded returns what a pod answers at port 8080 by kubectl port-forward.
func (n apiNode) forwarded(pod string) string {
	n.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(n.t, err)
	port := l.Addr().(*net.TCPAddr).Port
	must(n.t, l.Close())
	c := exec.CommandContext(n.ctx, os.Getenv("CONTROLPLANE"), "kubectl", "--kubeconfig", n.place.Run+"/kubeconfig", "port-forward", "pod/"+pod, fmt.Sprintf("%d:8080", port))
	must(n.t, c.Start())
	defer func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	}()
	var page string
	until(n.t, "the forwarded port to answer", func() bool {
		answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		page = string(b)
		return err == nil
	})
	return page
}

// hostName is the name that a node has which is given none.
func hostName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	must(t, err)
	return strings.ToLower(name)
}
