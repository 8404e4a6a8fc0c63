//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod/lifecycle"
)

// inCluster makes a pod one of the test's namespace and node.
func (c *cluster) inCluster(p *v1.Pod) *v1.Pod {
	p.Namespace, p.Spec.NodeSelector = c.namespace, map[string]string{v1.LabelHostname: c.name}
	return p
}

// ephemeral is the status of the pod's ephemeral container of this name.
func ephemeral(p *v1.Pod, name string) v1.ContainerStatus {
	if p != nil {
		for _, s := range p.Status.EphemeralContainerStatuses {
			if s.Name == name {
				return s
			}
		}
	}
	return v1.ContainerStatus{}
}

// processesOf is the namespace of processes in which a container lives.
func (c *cluster) processesOf(s v1.ContainerStatus) string {
	c.t.Helper()
	_, id, _ := strings.Cut(s.ContainerID, "://")
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.pid(id)))
	if err != nil {
		c.t.Fatal(err)
	}
	return link
}

// awaitShown waits until a new agent shows the pod.
func (c *cluster) awaitShown(uid types.UID) {
	c.t.Helper()
	c.await("the new agent to show the pod", func(p pods) bool { return p.has(uid) })
}

// kubectl debug adds a container to a running pod, which sees the processes of its target, is
// started once, and goes with the pod.
func TestLifeEphemeralContainers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	ended := actor("ended", "exit 0")
	never := v1.ContainerRestartPolicyNever
	ended.RestartPolicy = &never
	c.create(c.inCluster(c.act("web", v1.RestartPolicyAlways, nil, ended, actor("main", "stay"))))
	c.awaitAPI("the pod to run", func(p pods) bool {
		w := p.named("web")
		return container(w, "main").State.Running != nil && container(w, "ended").State.Terminated != nil
	})

	debug := func(name string, more ...string) {
		t.Helper()
		c.kubectl(append(append([]string{"debug", "web", "--image=" + helloImage, "--container=" + name, "--quiet"}, more...), "--", "/hello", "sleep")...)
	}
	debug("inside", "--target=main")
	debug("beside")
	debug("nowhere", "--target=ended")
	before := c.awaitAPI("the ephemeral containers to run", func(p pods) bool {
		w := p.named("web")
		return ephemeral(w, "inside").State.Running != nil && ephemeral(w, "beside").State.Running != nil && ephemeral(w, "nowhere").State.Waiting != nil &&
			ephemeral(w, "nowhere").State.Waiting.Reason == lifecycle.CreateContainerConfigError
	}).named("web")
	wantText(t, "why the third does not run", ephemeral(before, "nowhere").State.Waiting.Message, `unable to find target container "ended"`)
	ours := c.processesOf(container(before, "main"))
	if inside, beside := c.processesOf(ephemeral(before, "inside")), c.processesOf(ephemeral(before, "beside")); inside != ours || beside == ours {
		t.Errorf("the target's processes are in %s, those of the container in it in %s, those of the one beside it in %s", ours, inside, beside)
	}

	// The next agent finds them as they are.
	a.kill()
	c.startMember()
	c.awaitShown(before.UID)
	for _, name := range []string{"inside", "beside"} {
		now := c.awaitAPI("the ephemeral containers to run", func(p pods) bool { return ephemeral(p.named("web"), name).State.Running != nil }).named("web")
		if got, was := ephemeral(now, name), ephemeral(before, name); got.ContainerID != was.ContainerID || got.RestartCount != 0 {
			t.Errorf("with the agent changed %s from %+v to %+v", name, was, got)
		}
	}

	// Its end is its end, and nobody else's.
	_, id, _ := strings.Cut(ephemeral(before, "beside").ContainerID, "://")
	if err := unix.Kill(c.pid(id), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := c.awaitAPI("the ephemeral container to end", func(p pods) bool { return ephemeral(p.named("web"), "beside").State.Terminated != nil }).named("web")
	if end := ephemeral(after, "beside").State.Terminated; end.ExitCode != 137 {
		t.Errorf("the ephemeral container ended with %+v, want code 137", end)
	}
	c.signal(after, "main", unix.SIGKILL) // and with it all in its namespace of processes
	after = c.awaitAPI("the target to be restarted", func(p pods) bool {
		w := p.named("web")
		return container(w, "main").RestartCount == 1 && container(w, "main").State.Running != nil && ephemeral(w, "inside").State.Terminated != nil
	}).named("web")
	for _, s := range after.Status.EphemeralContainerStatuses {
		if s.RestartCount != 0 || s.State.Running != nil {
			t.Errorf("the ephemeral container %s was started again: %+v", s.Name, s)
		}
	}
	debug("late", "--target=main")
	c.awaitAPI("an ephemeral container of the restarted target to run", func(p pods) bool { return ephemeral(p.named("web"), "late").State.Running != nil })
	tr := c.clusterTraces(after)
	c.kubectl("delete", "pod", "web")
	c.wantEnded(after)
	until(t, "the pod to leave nothing", func() bool { return len(c.left(tr)) == 0 && len(c.sandboxes(after)) == 0 })
}

// A pod for which the node has no room is refused and stays so; a critical one takes the room of
// another.
func TestLifeAdmission(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	n, err := c.client.GetNode(c.ctx, c.name)
	if err != nil {
		t.Fatal(err)
	}
	total := n.Status.Allocatable.Cpu().MilliValue()
	asking := func(p *v1.Pod, milli int64) *v1.Pod {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
		return p
	}
	small := c.helloPod("small", "serve")
	small.Spec.NodeName = c.name
	c.create(asking(small, total*6/10))
	before := c.awaitAPIReady("small").named("small")
	big := c.helloPod("big", "serve")
	big.Spec.NodeName = c.name // past the scheduler, which would not
	c.create(asking(big, total/2))
	refused := func() *v1.Pod {
		return c.awaitAPI("the pod to be refused", func(p pods) bool { return p.inPhase("big", v1.PodFailed) }).named("big")
	}
	was := refused()
	message := fmt.Sprintf("Node didn't have enough resource: cpu, requested: %d, used: %d, capacity: %d", total/2, total*6/10, total)
	if was.Status.Reason != "OutOfcpu" || was.Status.Message != "Pod was rejected: "+message || len(was.Status.ContainerStatuses) > 0 {
		t.Errorf("the refused pod has the status %+v, want reason OutOfcpu: %s", was.Status, message)
	}
	c.awaitEvent("big", "OutOfcpu", message)

	// The next agent neither asks again nor doubts what runs.
	a.kill()
	c.startMember()
	c.awaitShown(before.UID)
	c.stays("the refused pod is failed", time.Second, func() bool {
		p, err := c.client.GetPod(c.ctx, c.namespace, "big")
		return err == nil && p.UID == was.UID && p.Status.Phase == v1.PodFailed && p.Status.Reason == "OutOfcpu"
	})
	if now := c.awaitAPIReady("small").named("small"); containerID(now, "main") != containerID(before, "main") || container(now, "main").RestartCount != 0 {
		t.Errorf("the pod that ran is %+v, was %+v", now.Status, before.Status)
	}

	critical := strings.Replace(manifest("critical", "serve"), "metadata:\n", "metadata:\n  namespace: "+c.namespace+"\n", 1) +
		fmt.Sprintf("    resources: {requests: {cpu: %dm}}\n", total*6/10)
	c.write("critical.yaml", critical)
	now := c.awaitAPI("the critical pod to run in the place of another", func(p pods) bool {
		return p.ready("critical-"+c.name) && p.inPhase("small", v1.PodFailed)
	})
	preempted := now.named("small")
	if target := podCondition(preempted, v1.DisruptionTarget); preempted.Status.Reason != "Preempting" || target.Status != v1.ConditionTrue || target.Reason != "TerminationByKubelet" {
		t.Errorf("the preempted pod has reason %s and condition %+v", preempted.Status.Reason, target)
	}
	if sandboxes, containers := c.running(preempted); sandboxes+containers > 0 {
		t.Errorf("of the preempted pod run %d sandboxes and %d containers", sandboxes, containers)
	}
	c.kubectl("delete", "pod", "big", "small")
	c.remove("critical.yaml")
	c.awaitAPI("the pods to go", func(p pods) bool { return len(p) == 0 })
}

// A deletion that leaves less time ends a preStop hook that is under way; how the containers ended
// is in the API before the pod goes.
func TestLifeShortenedDeletion(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	main := actor("main", deaf)
	main.Lifecycle = &v1.Lifecycle{PreStop: hookOf("hook", "say began; sleep 600; say ended")}
	p := c.inCluster(c.act("web", v1.RestartPolicyAlways, []v1.Container{sidecar(actor("side", "stay"))}, main))
	long := int64(600)
	p.Spec.TerminationGracePeriodSeconds, p.Finalizers = &long, []string{"berth.local/e2e"}
	c.create(p)
	web := c.awaitAPIReady("web").named("web")
	for _, name := range []string{"side", "main"} {
		c.awaitStory("web", name+" began")
	}
	c.kubectl("delete", "pod", "web", "--wait=false")
	c.awaitStory("web", "hook began")
	c.kubectl("delete", "pod", "web", "--grace-period=2", "--wait=false")
	ended := c.awaitAPI("the containers to end", func(p pods) bool {
		return len(p) == 1 && container(p[0], "main").State.Terminated != nil && container(p[0], "side").State.Terminated != nil
	})[0]
	wantTerminated(t, ended, "main", 137, "Error")
	if c.said("web", "hook began") != 1 || slices.Contains(c.story("web"), "hook ended") {
		t.Errorf("want the hook begun once and not ended: %q", c.story("web"))
	}
	c.wantStory("web", "hook began", "main asked")
	c.awaitAPI("the agent to have no more use for the pod", func(p pods) bool { return len(p) == 1 && *p[0].DeletionGracePeriodSeconds == 0 })
	c.kubectl("patch", "pod", "web", "--type=json", "-p", `[{"op": "remove", "path": "/metadata/finalizers"}]`)
	c.awaitAPI("the pod to go", func(p pods) bool { return len(p) == 0 })
	until(t, "the sandboxes to go", func() bool { return len(c.sandboxes(web)) == 0 })
}
