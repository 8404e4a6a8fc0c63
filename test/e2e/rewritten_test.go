//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A manifest that is deleted and written again within a moment, with the same content, ends its pod
// and starts it again: each time, as the same pod, with a restart more and no back-off. Another pod
// does not notice.
func TestRewrittenManifestRestartsThePod(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	content := manifest("web", "serve")
	n.write("web.yaml", content)
	n.write("steady.yaml", manifest("steady", "serve"))
	n.start()
	now := n.awaitReady("web", "steady")
	first, steady := now.named("web"), now.named("steady")
	for i := range int32(20) {
		rewrite(t, n, content)
		now = n.await("the rewritten pod", func(p pods) bool { return p.ready("web") && container(p.named("web"), "main").RestartCount == i+1 })
	}
	if got := now.named("web"); got.UID != first.UID {
		t.Errorf("pod %s became %s", first.UID, got.UID)
	}
	if s, c := n.running(first); s != 1 || c != 1 {
		t.Errorf("%d sandboxes and %d containers of the pod run", s, c)
	}
	wantUntouched(t, n, steady)
	wantInOrder(t, n.explain("web"), "removed", "accepted", "container stopped", "sandbox stopped", "pod removed", "container started")
}

// The mirror of a static pod is made anew with its pod.
func TestClusterRewrittenStaticPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	name := "web-" + c.name
	content := strings.Replace(manifest("web", "serve"), "metadata:\n", "metadata:\n  namespace: "+c.namespace+"\n", 1)
	c.write("web.yaml", content)
	c.startMember()
	mirror := c.awaitAPIReady(name).named(name)
	static := c.awaitReady(name).named(name)
	rewrite(t, c.node, content)
	next := c.awaitAPI("another mirror, of a pod with a restart", func(p pods) bool {
		return len(p) == 1 && p[0].UID != mirror.UID && p.ready(name) && container(p[0], "main").RestartCount == 1
	})[0]
	if next.Annotations[v1.MirrorPodAnnotationKey] != mirror.Annotations[v1.MirrorPodAnnotationKey] {
		t.Errorf("the mirror was of pod %s and is of another one now", static.UID)
	}
}

// rewrite deletes the manifest web.yaml and writes it again at once.
func rewrite(t *testing.T, n *node, content string) {
	t.Helper()
	path := filepath.Join(n.manifests(), "web.yaml")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
