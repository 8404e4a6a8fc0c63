//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// view runs kubectl over the agent's view of its node.
func (n *node) view(args ...string) answer {
	n.t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(n.ctx, n.binary, append([]string{"kubectl", "--run-dir", n.place.Run}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	return answer{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
}

// look is view that must succeed.
func (n *node) look(args ...string) string {
	n.t.Helper()
	got := n.view(args...)
	if got.code != 0 {
		n.t.Errorf("kubectl %s: %v", strings.Join(args, " "), got)
	}
	return got.out
}

// kubectl of a member of a cluster shows its node out of the agent's memory while the API server is
// away, and enters containers; and nothing can be changed there.
func TestClusterView(t *testing.T) {
	c := newCluster(t)
	static := "fixed-" + c.name
	c.write("fixed.yaml", strings.Replace(manifest("fixed", "serve"), "metadata:\n", "metadata:\n  namespace: "+c.namespace+"\n", 1))
	a := c.startMember()
	c.create(withTools(c.helloPod("web", "serve")))
	before := c.awaitAPIReady("web", static)
	start := c.stopServer()
	defer start()

	look := func(args ...string) string {
		t.Helper()
		return c.look(append([]string{"-n", c.namespace}, args...)...)
	}
	wantMatch(t, "get pods", look("get", "pods"), `(?m)^`+static+` +1/1 +Running +0 +\S+\n^web +1/1 +Running +0 +\S+\n$`)
	if got := look("get", "pod", "web", "-o", "jsonpath={.metadata.uid}"); got != string(before.named("web").UID) {
		t.Errorf("the UID of web is %s, and is %s in the cluster", got, before.named("web").UID)
	}
	wantText(t, "logs", look("logs", static), static+" listening on")
	if got := look("exec", "web", "--", "/usr/bin/sh", "-c", "echo $((6*7))"); got != "42\n" {
		t.Errorf("exec says %q", got)
	}
	wantText(t, "get events", look("get", "events", "--field-selector", "involvedObject.name=web"), "Started", "pod/web")
	wantMatch(t, "describe pod", look("describe", "pod", static), `(?m)^  Normal +Started +\S+ +kubelet `)
	wantMatch(t, "describe node", look("describe", "node", c.name), `(?m)^  `+c.namespace+` +web +[\s\S]*^Events:`)
	until(t, "top to show web", func() bool {
		got := c.view("-n", c.namespace, "top", "pod", "web", "--no-headers")
		return got.code == 0 && regexp.MustCompile(`^web +\d+m +\d+Mi`).MatchString(got.out)
	})
	for _, change := range [][]string{{"delete", "pod", "web"}, {"label", "node", c.name, "a=b"}, {"run", "x", "--image", helloImage}} {
		got := c.view(append([]string{"-n", c.namespace}, change...)...)
		if got.code == 0 || !strings.Contains(got.errOut, "can only be read: write to the API server of its cluster") {
			t.Errorf("kubectl %s: %v", strings.Join(change, " "), got)
		}
	}
	if got := c.view("get", "secrets"); got.code == 0 || !strings.Contains(got.errOut, `the server doesn't have a resource type "secrets"`) {
		t.Errorf("kubectl get secrets: %v", got)
	}

	// What changes is told to those who watch.
	watching := c.follow("kubectl", "-n", c.namespace, "get", "pods", "-w")
	watching.awaitText(`(?m)^web +1/1 +Running`)
	if err := os.Remove(c.manifests() + "/fixed.yaml"); err != nil {
		t.Fatal(err)
	}
	watching.awaitText(`(?m)^` + static + ` +\S+ +Terminating`)
	until(t, "the static pod to go", func() bool { return !strings.Contains(look("get", "pods"), static) })

	start()
	c.awaitAPI("the cluster to hear of it", func(p pods) bool { return p.named(static) == nil && p.named("web").Status.Phase == v1.PodRunning })
	a.end(unix.SIGTERM)
	if _, err := os.Stat(c.place.Run + "/view"); !os.IsNotExist(err) {
		t.Errorf("the agent has ended, and there is still a view: %v", err)
	}
}

// A kubelet without an API server shows its static pods.
func TestStandaloneView(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.write("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken}\nspec: {containers: []}\n")
	a := n.startKubelet("")
	name := "web-" + "n1"
	n.awaitReady(name)
	wantMatch(t, "get pods", n.look("get", "pods"), `(?m)^`+name+` +1/1 +Running`)
	wantMatch(t, "the refused manifest", n.look("get", "pods"), `(?m)^broken.yaml +0/0 +InvalidManifest +0 +\d+`)
	wantMatch(t, "get nodes", n.look("get", "nodes"), `(?m)^`+"n1"+` +Ready`)
	wantText(t, "logs", n.look("logs", name), "listening on")
	if got := n.view("exec", name, "--", "/hello", "exit", "3"); got.code != 3 {
		t.Errorf("exec: %v", got)
	}

	// A view that an agent was killed with is nothing to the next one.
	old := readText(t, n.place.Run+"/view/kubeconfig")
	a.kill()
	n.startKubelet("")
	until(t, "the old view to go", func() bool { _, err := os.Stat(n.place.Run + "/view"); return os.IsNotExist(err) })
	wantText(t, "get pods", n.look("get", "pods"), name)
	if readText(t, n.place.Run+"/view/kubeconfig") == old {
		t.Error("the new agent knows those that the old one knew")
	}
}
