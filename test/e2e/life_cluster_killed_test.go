//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// killStep is where in a pod's life the agent is killed: in a call of the runtime, or when the API
// shows something of the pod.
type killStep struct {
	call   string
	moment moment
	told   string // what the API shows
	shown  func(*v1.Pod) bool
}

func (s killStep) String() string {
	if s.told != "" {
		return "the API showing it " + s.told
	}
	return strings.TrimSpace(string(s.moment) + " " + s.call)
}

// An agent of a cluster that is killed at steps of a pod's life, be they calls of the runtime or
// what the API server was told, changes nothing of how that goes on: each container is started
// once, the API shows what it would have shown, and nothing is left.
func TestLifeClusterAgentKilledAtEachStep(t *testing.T) {
	t.Parallel()
	runtime, image := startRuntime(t)
	c := newCluster(t)
	x, endpoint := c.tapInto(runtime, image)
	c.reconfigure("containerRuntimeEndpoint: embedded", "containerRuntimeEndpoint: "+endpoint)
	a := c.startMember()

	deleted := func(p *v1.Pod) bool { return p.DeletionTimestamp != nil }
	done := func(p *v1.Pod) bool { return deleted(p) && *p.DeletionGracePeriodSeconds == 0 }
	for i, life := range []struct{ start, end killStep }{
		{killStep{call: "CreateContainer", moment: duringCall}, killStep{told: "deleted", shown: deleted}},
		{killStep{call: "RunPodSandbox", moment: duringCall}, killStep{call: "ExecSync", moment: duringCall}},
		{killStep{call: "PullImage"}, killStep{call: "StopContainer", moment: afterCall}},
		{killStep{call: "CreateContainer", moment: afterCall}, killStep{call: "StopPodSandbox", moment: afterCall}},
		{killStep{call: "StartContainer", moment: afterCall}, killStep{call: "StopContainer", moment: duringCall}},
		{killStep{told: "ready", shown: isReady}, killStep{told: "done", shown: done}},
	} {
		main := actor("main", alone+"stay")
		main.ImagePullPolicy = v1.PullAlways
		main.Lifecycle = &v1.Lifecycle{PreStop: hookOf("hook", "say pre; sleep 0.1")}
		init := actor("init", alone+"say began")
		p := c.inCluster(c.act(fmt.Sprintf("pod%d", i), v1.RestartPolicyAlways, []v1.Container{init}, main))
		p.Finalizers = []string{"berth.local/e2e"} // its last status is looked at

		c.strikeAt(&a, x, life.start, p.Name, func() { c.create(p) })
		running := c.awaitAPIReady(p.Name).named(p.Name)
		where := fmt.Sprintf("the agent was killed at %v and at %v", life.start, life.end)
		if sandboxes, containers := c.running(running); sandboxes != 1 || containers != 1 {
			t.Errorf("%s: %d sandboxes and %d containers run", where, sandboxes, containers)
		}
		c.strikeAt(&a, x, life.end, p.Name, func() { c.kubectl("delete", "pod", p.Name, "--wait=false") })
		ended := c.awaitAPI("the agent to be done with "+p.Name, func(p pods) bool { return len(p) == 1 && done(p[0]) })[0]
		wantTerminated(t, ended, "main", 0, "Completed")
		if now := container(ended, "main"); ended.Status.Phase != v1.PodSucceeded || now.RestartCount != 0 || now.ContainerID != container(running, "main").ContainerID {
			t.Errorf("%s: the pod has the status %+v", where, ended.Status)
		}
		for _, line := range []string{"init began", "main began", "main asked"} {
			if n := c.said(p.Name, line); n != 1 {
				t.Errorf("%s: %q was said %d times: %q", where, line, n, c.story(p.Name))
			}
		}
		if c.said(p.Name, "hook pre") > 1 || slices.ContainsFunc(c.story(p.Name), func(l string) bool { return strings.HasSuffix(l, "runs twice") }) {
			t.Errorf("%s: %q", where, c.story(p.Name))
		}
		c.kubectl("patch", "pod", p.Name, "--type=json", "-p", `[{"op": "remove", "path": "/metadata/finalizers"}]`)
		c.awaitAPI("the pod to go", func(p pods) bool { return len(p) == 0 })
		c.wantNothingOf(running, where)
		t.Logf("%s: %q", where, c.story(p.Name))
	}
}

// strikeAt does something, and kills the agent at the step of the pod to which it leads. In its
// place it starts another.
func (c *cluster) strikeAt(a **agent, x *tap, at killStep, pod string, do func()) {
	c.t.Helper()
	if at.call != "" {
		x.arm(strike{agent: *a, call: at.call, nth: 1, moment: at.moment})
	}
	do()
	if at.call != "" {
		until(c.t, "the agent to be killed in "+at.call, func() bool { return x.struck() != "" })
		(*a).wait()
	} else {
		c.awaitAPI("the step at which the agent is killed", func(p pods) bool {
			return slices.ContainsFunc(p, func(p *v1.Pod) bool { return p.Name == pod && at.shown(p) })
		})
		(*a).kill()
	}
	*a = c.startKubelet()
}
