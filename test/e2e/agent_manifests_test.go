//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// unknownImage is in no registry: nothing listens on this port of the loopback.
const unknownImage = "127.0.0.1:1/nobody/nothing:1"

// What is wrong with a manifest is said where a user looks, and harms no other pod.
func TestRefusedManifestsAreExplained(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("steady.yaml", manifest("steady", "serve"))
	a := n.start()
	steady := n.awaitReady("steady").named("steady")

	refused := []struct {
		file, content string
		says          string // a regular expression
	}{
		{"broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n", `(?i)yaml.*line`},
		{"deployment.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n", `Deployment`},
		{"nameless.yaml", strings.Replace(manifest("x", "serve"), "  name: x\n", "  labels: {a: b}\n", 1), `metadata\.name`},
		{"empty.yaml", strings.Replace(manifest("empty", "serve"), "containers:", "unknown:", 1), `spec\.(containers|unknown)`},
	}
	for _, r := range refused {
		n.write(r.file, r.content)
	}
	n.await("the manifests to be refused", func(pods) bool { return len(n.problems()) >= len(refused) })

	for _, r := range refused {
		row := regexp.MustCompile(`^` + regexp.QuoteMeta(r.file) + ` .*InvalidManifest`)
		until(t, "berth get pods to have "+r.file, func() bool { return row.MatchString(n.command(n.ctx, "get", "pods", r.file, "--no-headers").out) })
		wantMatch(t, "berth describe pod "+r.file, n.berth("describe", "pod", r.file), r.says)
		line := regexp.MustCompile(`(?m)^.*` + regexp.QuoteMeta(r.file) + `.*` + r.says)
		if log := readText(t, a.log); !line.MatchString(log) {
			t.Errorf("the log does not say of %s what matches %s:\n%s", r.file, r.says, log)
		}
		if said := n.berth("explain", "--all", r.file); !regexp.MustCompile(`manifest refused`).MatchString(said) || !regexp.MustCompile(r.says).MatchString(said) {
			t.Errorf("berth explain %s says\n%s", r.file, said)
		}
	}
	wantUntouched(t, n, steady)

	for _, r := range refused {
		n.remove(r.file)
	}
	n.await("the problems to go", func(pods) bool { return len(n.problems()) == 0 })
	wantUntouched(t, n, steady)
}

// An image that cannot be had is said of its container, and harms no other pod; its pod starts when
// the manifest is put right.
func TestUnknownImageIsExplained(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("steady.yaml", manifest("steady", "serve"))
	a := n.start()
	steady := n.awaitReady("steady").named("steady")

	n.write("wrong.yaml", strings.ReplaceAll(manifest("wrong", "serve"), helloImage, unknownImage))
	n.write("never.yaml", strings.ReplaceAll(manifest("never", "serve"), helloImage, unknownImage+"\n    imagePullPolicy: Never"))
	waits := func(p pods, name string, reasons ...string) bool {
		w := container(p.named(name), "main").State.Waiting
		return w != nil && strings.Contains(strings.Join(reasons, " "), w.Reason) && w.Message != ""
	}
	now := n.await("the images to be missed", func(p pods) bool {
		return waits(p, "wrong", "ErrImagePull", "ImagePullBackOff") && waits(p, "never", "ErrImageNeverPull")
	})
	for _, name := range []string{"wrong", "never"} {
		if phase := now.named(name).Status.Phase; phase != v1.PodPending {
			t.Errorf("pod %s is %s, want Pending", name, phase)
		}
	}
	n.awaitRows(nil, `(?m)^wrong +0/1 +(ErrImagePull|ImagePullBackOff) +0 `, `(?m)^never +0/1 +ErrImageNeverPull +0 `, `(?m)^steady +1/1 +Running +0 `)
	if log := readText(t, a.log); !regexp.MustCompile(`(?m)^.*wrong.*` + regexp.QuoteMeta(unknownImage)).MatchString(log) {
		t.Errorf("the log has no line on the image of pod wrong:\n%s", log)
	}
	wantText(t, "berth explain wrong", n.berth("explain", "--all", "wrong"), unknownImage, "connection refused")
	wantText(t, "berth explain never", n.berth("explain", "--all", "never"), unknownImage)
	wantUntouched(t, n, steady)

	n.write("wrong.yaml", manifest("wrong", "serve"))
	n.awaitReady("wrong")
	wantUntouched(t, n, steady)
}

// wantUntouched checks that the pod runs as it did.
func wantUntouched(t *testing.T, n *node, before *v1.Pod) {
	t.Helper()
	after := n.awaitReady(before.Name).named(before.Name)
	if got, want := container(after, "main"), container(before, "main"); got.ContainerID != want.ContainerID || got.RestartCount != want.RestartCount {
		t.Errorf("pod %s had container %s, has %s", before.Name, want.ContainerID, got.ContainerID)
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
