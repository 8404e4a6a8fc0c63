//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// five are pods of all sorts that run for ever: plain ones, one with objects, one with a sidecar,
// one of a manifest.
func (c *cluster) five() (names []string) {
	c.t.Helper()
	c.apply(objectsManifest)
	always := v1.ContainerRestartPolicyAlways
	sidecar := c.helloPod("sidecar", "serve")
	sidecar.Spec.InitContainers = []v1.Container{
		{Name: "side", Image: helloImage, Args: []string{"sleep"}, RestartPolicy: &always},
		{Name: "first", Image: helloImage, Args: []string{"exit", "0"}},
	}
	writer := c.helloPod("writer", "write", "-rate", "6400")
	c.create(c.helloPod("web", "serve"), sidecar, writer)
	c.write("static.yaml", fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static, namespace: %s}\nspec:\n  containers: [{name: main, image: %q, args: [serve]}]\n", c.namespace, helloImage))
	return []string{"web", "sidecar", "writer", "reader", "static-" + c.name}
}

// course is what must stay as it is while pods simply run: containers, conditions and the times of
// their changes.
func course(p pods) map[string]any {
	out := map[string]any{}
	for _, pod := range p {
		conditions := map[v1.PodConditionType]string{}
		for _, c := range pod.Status.Conditions {
			conditions[c.Type] = fmt.Sprintf("%s since %v", c.Status, c.LastTransitionTime.UTC())
		}
		for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			out[pod.Name+"/"+s.Name] = v1.ContainerStatus{ContainerID: s.ContainerID, Ready: s.Ready, Started: s.Started, RestartCount: s.RestartCount, State: s.State}
		}
		out[pod.Name] = []any{pod.UID, pod.Status.Phase, pod.Status.PodIP, pod.Status.StartTime, conditions}
	}
	return out
}

// An agent that is killed and started again under five running pods disturbs none of them, and
// makes nothing a second time.
func TestClusterKilledAgentChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	names := c.five()
	before := c.awaitAPIReady(names...)
	began, bodies := course(before), c.bodies(before)
	node, err := c.client.GetNode(c.ctx, c.name)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a.kill()
		a = c.startMember()
		c.awaitReady(names...) // the agent's own view
		c.stays("the pods go on as they were", 3*time.Second, func() bool {
			now, _ := c.apiPods()
			diff := cmp.Diff(began, course(now))
			if diff != "" {
				t.Errorf("the pods changed with the agent (-before +after):\n%s", diff)
			}
			return diff == ""
		})
	}
	now, _ := c.apiPods()
	if diff := cmp.Diff(bodies, c.bodies(now)); diff != "" {
		t.Errorf("processes changed with the agent (-before +after):\n%s", diff)
	}
	inContainers := map[string]int{"sidecar": 2}
	for _, p := range now {
		if p.Name == names[4] {
			continue // the runtime knows it by another UID
		}
		if sandboxes, containers := c.running(p); sandboxes != 1 || containers != max(1, inContainers[p.Name]) || len(c.sandboxes(p)) != 1 {
			t.Errorf("pod %s has %d sandboxes, %d of them and %d containers run", p.Name, len(c.sandboxes(p)), sandboxes, containers)
		}
	}
	after, err := c.client.GetNode(c.ctx, c.name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := nodeCondition(after, v1.NodeReady), nodeCondition(node, v1.NodeReady); after.UID != node.UID || !got.LastTransitionTime.Equal(&want.LastTransitionTime) || got.Status != want.Status {
		t.Errorf("the node was ready %v, is %v", want, got)
	}
}

// What happened to pods while no agent ran is made up for: ended ones are removed, also without the
// API's object, new ones started.
func TestClusterKilledAgentCatchesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	kept := c.helloPod("finalized", "serve")
	kept.Finalizers = []string{"berth.local/e2e"}
	c.create(c.helloPod("steady", "serve"), c.helloPod("deleted", "serve"), c.helloPod("forced", "serve"), c.helloPod("replaced", "serve"), kept)
	before := c.awaitAPIReady("steady", "deleted", "forced", "replaced", "finalized")
	bodies := c.bodies(before)
	var gone []traces
	for _, name := range []string{"deleted", "forced", "replaced"} {
		gone = append(gone, c.clusterTraces(before.named(name)))
	}
	a.kill()
	c.kubectl("delete", "pod", "deleted", "finalized", "--wait=false")
	c.kubectl("delete", "pod", "forced", "replaced", "--force", "--grace-period=0")
	fresh := c.helloPod("fresh", "serve")
	fresh.Spec.NodeName = c.name
	replaced := c.helloPod("replaced", "serve", "-port", "8081")
	replaced.Spec.NodeName = c.name
	elsewhere := c.helloPod("elsewhere", "serve")
	elsewhere.Spec.NodeName = "elsewhere"
	c.create(fresh, replaced, elsewhere)

	c.startMember()
	after := c.awaitAPI("the agent to catch up", func(p pods) bool {
		return p.ready("steady", "fresh", "replaced") && !p.has(before.named("deleted").UID)
	})
	for _, tr := range gone {
		until(t, "pod "+tr.pod.Name+" to leave nothing", func() bool { return len(c.left(tr)) == 0 && len(c.sandboxes(tr.pod)) == 0 })
	}
	c.awaitAPI("the pod with a finalizer to end and stay", func(p pods) bool {
		for _, pod := range p {
			if pod.UID == before.named("finalized").UID {
				return container(pod, "main").State.Terminated != nil
			}
		}
		t.Error("the pod with a finalizer is gone")
		return true
	})
	if diff := cmp.Diff(lives(pods{before.named("steady")}), lives(pods{after.named("steady")})); diff != "" {
		t.Errorf("the pod that nobody touched changed (-before +after):\n%s", diff)
	}
	if got := c.bodies(pods{after.named("steady")})["steady/main"]; got != bodies["steady/main"] {
		t.Errorf("its process was %d, is %d", bodies["steady/main"], got)
	}
	answers(t, "http://"+after.named("replaced").Status.PodIP+":8081/")
	if other := after.named("elsewhere"); other.Status.StartTime != nil {
		t.Errorf("the pod of another node has the status %+v", other.Status)
	}
	c.kubectl("patch", "pod", "finalized", "--type=json", "-p", `[{"op": "remove", "path": "/metadata/finalizers"}]`)
	c.awaitAPI("the pod with a finalizer to go", func(p pods) bool { return !p.has(before.named("finalized").UID) })
}

// stopServer takes the API server away until it is started again, at the latest when the test ends.
// It is that of all tests in a cluster: a test that calls this does not call t.Parallel.
func (c *cluster) stopServer() (start func()) {
	c.t.Helper()
	if n := liveClusters.Load(); n > 1 {
		c.t.Fatalf("%d tests use the API server: a test that stops it must not call t.Parallel", n)
	}
	c.plane.must("stop-apiserver")
	started := false
	start = func() {
		c.t.Helper()
		if !started {
			started = true
			c.plane.must("start-apiserver")
		}
	}
	c.t.Cleanup(func() {
		if !started {
			if out, err := exec.Command(c.plane.binary, "start-apiserver", "--dir", c.plane.dir).CombinedOutput(); err != nil {
				c.t.Errorf("clean up: %v: %s", err, out)
			}
		}
	})
	return start
}

// While there is no API server the agent keeps the pods running as they shall be, and then tells
// what became of them.
func TestClusterOutage(t *testing.T) {
	const outage = 25 * time.Second
	c := newCluster(t)
	c.startMember()
	names := c.five()
	done := c.helloPod("done", "sleep", "20s")
	done.Spec.RestartPolicy = v1.RestartPolicyNever
	c.create(done, c.helloPod("crashing", "serve"), c.stubborn("ending", 8))
	before := c.awaitAPIReady(append(names, "crashing", "done", "ending")...)
	bodies := c.bodies(before)

	// One pod is about to start and one about to end.
	late := c.helloPod("late", "serve")
	late.Spec.NodeName = c.name
	late.Spec.AutomountServiceAccountToken = new(false) // a token is the API server's to give
	c.kubectl("delete", "pod", "ending", "--wait=false")
	c.create(late)
	c.await("the agent to know of both", func(p pods) bool {
		return p.named("late") != nil && p.named("ending") == nil // but for pods that end
	})
	start := c.stopServer()
	end := time.Now().Add(outage)
	c.signal(before.named("crashing"), "main", unix.SIGKILL)
	c.await("the container to be restarted without an API server", func(p pods) bool {
		return p.ready("crashing") && container(p.named("crashing"), "main").RestartCount == 1
	})
	c.await("the other pod to succeed without an API server", func(p pods) bool {
		return p.named("done").Status.Phase == v1.PodSucceeded
	})
	c.await("the new pod to start without an API server", func(p pods) bool { return p.ready("late") })
	until(t, "the pod that ends to end without an API server", func() bool {
		_, containers := c.running(before.named("ending"))
		return containers == 0
	})
	c.stays("the pods run without an API server", time.Until(end), func() bool {
		now, err := c.list(c.ctx)
		return err == nil && now.ready(append(names, "crashing", "late")...)
	})
	start()

	after := c.awaitAPI("the statuses to catch up", func(p pods) bool {
		return p.ready(append(names, "crashing", "late")...) && container(p.named("crashing"), "main").RestartCount == 1 && p.named("done").Status.Phase == v1.PodSucceeded &&
			!p.has(before.named("ending").UID)
	})
	if n := container(after.named("late"), "main").RestartCount; n != 0 {
		t.Errorf("the container that started without an API server was restarted %d times", n)
	}
	now := c.bodies(pods{after.named("web"), after.named("sidecar"), after.named("writer"), after.named("reader"), after.named(names[4])})
	for name, pid := range now {
		if bodies[name] != pid {
			t.Errorf("the process of %s was %d, is %d", name, bodies[name], pid)
		}
	}
	for _, name := range names {
		if was, is := before.named(name), after.named(name); was.UID != is.UID || !cmp.Equal(lives(pods{was}), lives(pods{is})) {
			t.Errorf("pod %s changed in the outage:\n%s", name, cmp.Diff(lives(pods{was}), lives(pods{is})))
		}
	}
	until(t, "the node to be ready and its lease to be renewed", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		lease, lerr := c.client.GetLease(c.ctx, v1.NamespaceNodeLease, c.name)
		return err == nil && lerr == nil && nodeCondition(n, v1.NodeReady).Status == v1.ConditionTrue && lease.Spec.RenewTime.After(end)
	})
	// It works on as before. The scheduler, which may wait for longer before it asks the API server
	// again, is not needed.
	fresh := c.helloPod("fresh", "serve")
	fresh.Spec.NodeName = c.name
	c.create(fresh)
	c.awaitAPIReady("fresh")
	c.kubectl("delete", "pod", "web", "--wait=false")
	c.awaitAPI("a pod to go", func(p pods) bool { return !p.has(before.named("web").UID) })
}

// An agent that starts while there is no API server leaves alone what runs, runs what manifests
// say, and takes the rest over when there is one.
func TestClusterAgentStartsInAnOutage(t *testing.T) {
	c := newCluster(t)
	a := c.startMember()
	names := c.five()
	before := c.awaitAPIReady(names...)
	began, bodies := lives(before), c.bodies(before)
	volume := filepath.Join(c.place.Root, "pods", string(before.named("reader").UID), "volumes/kubernetes.io~configmap/conf/file.txt")

	start := c.stopServer()
	a.kill()
	c.write("second.yaml", fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: second, namespace: %s}\nspec:\n  containers: [{name: main, image: %q, args: [serve]}]\n", c.namespace, helloImage))
	c.startKubelet()
	c.awaitReady(names[4], "second-"+c.name)
	c.stays("what runs runs on", 8*time.Second, func() bool {
		_, err := os.Stat(volume)
		return err == nil && cmp.Equal(bodies, c.bodies(before))
	})
	start()
	after := c.awaitAPIReady(append(names, "second-"+c.name)...)
	c.awaitReady(names...)
	var ours pods
	for _, p := range after {
		if p.Name != "second-"+c.name {
			ours = append(ours, p)
		}
	}
	if diff := cmp.Diff(began, lives(ours)); diff != "" {
		t.Errorf("containers changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(bodies, c.bodies(ours)); diff != "" {
		t.Errorf("processes changed (-before +after):\n%s", diff)
	}
}
