//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// A static pod is shown in the API by its mirror, which comes back when it is deleted, changes with
// the manifest and goes with it; the pod itself is its manifest's alone.
func TestClusterStaticPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	name := "web-" + c.name
	inNamespace := func(m string) string {
		return strings.Replace(m, "metadata:\n", "metadata:\n  namespace: "+c.namespace+"\n", 1)
	}
	c.write("web.yaml", inNamespace(manifest("web", "serve")))
	a := c.startMember()
	mirror := c.awaitAPIReady(name).named(name)
	static := c.awaitReady(name).named(name)
	if mirror.UID == static.UID || mirror.Annotations[v1.MirrorPodAnnotationKey] == "" || mirror.Spec.NodeName != c.name ||
		len(mirror.OwnerReferences) != 1 || mirror.OwnerReferences[0].Kind != "Node" || mirror.OwnerReferences[0].Name != c.name {
		t.Errorf("the mirror of pod %s is %s, with annotations %v and owners %v", static.UID, mirror.UID, mirror.Annotations, mirror.OwnerReferences)
	}
	body := c.bodies(pods{static})
	answers(t, "http://"+mirror.Status.PodIP+":8080/here")
	until(t, "kubectl logs of the mirror", func() bool { return strings.Contains(c.kubectl("logs", name), "GET /here 404") })
	if got := c.kubectlIn("", "exec", name, "--", "/hello", "exit", "3"); got.code != 3 {
		t.Errorf("kubectl exec in the mirror: %v", got)
	}

	again := func(what string, old *v1.Pod) *v1.Pod {
		t.Helper()
		now := c.awaitAPI("the mirror to come back "+what, func(p pods) bool {
			return len(p) == 1 && p[0].UID != old.UID && p.ready(name)
		})[0]
		if diff := cmp.Diff(lives(pods{mirror}), lives(pods{now})); diff != "" {
			t.Errorf("%s the containers changed (-before +after):\n%s", what, diff)
		}
		if diff := cmp.Diff(body, c.bodies(pods{now})); diff != "" {
			t.Errorf("%s the processes changed (-before +after):\n%s", what, diff)
		}
		return now
	}
	c.kubectl("delete", "pod", name, "--wait=false")
	second := again("after it was deleted", mirror)
	c.kubectl("delete", "pod", name, "--force", "--grace-period=0")
	third := again("after it was deleted by force", second)
	a.kill()
	c.kubectl("delete", "pod", name, "--force", "--grace-period=0")
	a = c.startMember()
	fourth := again("after it was deleted while no agent ran", third)

	c.write("web.yaml", inNamespace(manifest("web", "serve", "-port", "8081")))
	changed := c.awaitAPI("the mirror of the changed manifest", func(p pods) bool {
		return len(p) == 1 && p[0].UID != fourth.UID && p.ready(name)
	})[0]
	if got := changed.Spec.Containers[0].Args; !cmp.Equal(got, []string{"serve", "-port", "8081"}) {
		t.Errorf("the mirror of the changed manifest has the arguments %q", got)
	}
	answers(t, "http://"+changed.Status.PodIP+":8081/")
	if containerID(changed, "main") == containerID(mirror, "main") {
		t.Error("the mirror changed, and the container did not")
	}
	if _, containers := c.running(static); containers > 0 {
		t.Error("the container of the first manifest still runs")
	}

	c.remove("web.yaml")
	c.awaitAPI("the mirror to go", func(p pods) bool { return len(p) == 0 })
	until(t, "the pod to go", func() bool {
		now, err := c.list(c.ctx)
		return err == nil && len(now) == 0
	})
	c.stays("the mirror is gone", 2*time.Second, func() bool {
		now, _ := c.apiPods()
		return len(now) == 0
	})

	// A manifest that goes while no agent runs takes its mirror with it too.
	c.write("web.yaml", inNamespace(manifest("web", "serve")))
	c.awaitAPIReady(name)
	a.kill()
	c.remove("web.yaml")
	c.startMember()
	c.awaitAPI("the mirror to go", func(p pods) bool { return len(p) == 0 })
}
