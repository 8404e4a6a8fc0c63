//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/embedded"
)

// alone is what a container's script begins with if only one incarnation of it may run at a time.
const alone = `exec 9>/shared/$me.lock; flock -n 9 || say runs twice; `

// An agent that is killed at any step of the start or the end of a pod leaves nothing that the next
// one does not make good: the pod gets to where it was going, with each of its containers running
// once, and leaves nothing.
func TestLifeAgentKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, at := range []moment{duringCall, afterCall} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			n, x := newTappedNode(t)
			a := n.start()
			for nth, all := 1, false; !all; nth++ {
				p := n.stepwise(fmt.Sprintf("pod%d", nth))
				x.arm(strike{agent: a, nth: nth, moment: at})
				n.put(p)
				starting := n.awaitOrKilled(&a, x, func(p pods) bool { return p.ready(fmt.Sprintf("pod%d", nth)) })
				running := n.awaitReady(p.Name).named(p.Name)
				n.wantRunsOnce(running, starting)

				x.arm(strike{agent: a, nth: nth, moment: at})
				n.remove(p.Name + ".yaml")
				ending := n.awaitOrKilled(&a, x, func(p pods) bool { return len(p) == 0 })
				n.wantNothingOf(running, ending)
				if hooks := n.said(p.Name, "hook pre"); hooks > 1 {
					t.Errorf("the agent was killed %s: the preStop hook ran %d times", ending, hooks)
				}
				t.Logf("killed %q and %q: %q", starting, ending, n.story(p.Name))
				if all = starting == "" && ending == ""; all && nth <= 9 {
					t.Errorf("a pod has only %d steps", nth-1)
				}
			}
			// What is to run once does not run twice.
			for nth := range 4 { // 0: not at all
				p := n.act(fmt.Sprintf("job%d", nth), v1.RestartPolicyNever, nil, actor("main", "say began; sleep 0.1; say ended"))
				x.arm(strike{agent: a, nth: nth, moment: at})
				n.put(p)
				over := func(now pods) bool { return now.inPhase(p.Name, v1.PodSucceeded) || now.inPhase(p.Name, v1.PodFailed) }
				where := n.awaitOrKilled(&a, x, over)
				job := n.await("the job to be over", over).named(p.Name)
				if began, ended := n.said(p.Name, "main began"), n.said(p.Name, "main ended"); began > 1 || (ended == 1) != (job.Status.Phase == v1.PodSucceeded) {
					t.Errorf("the agent was killed %s: the job ran %d times, to its end %d times, and is %s", where, began, ended, job.Status.Phase)
				}
				n.remove(p.Name + ".yaml")
				n.wantNothingOf(job, where)
				t.Logf("killed %q: the job is %s: %v", where, job.Status.Phase, container(job, "main").State.Terminated)
			}
		})
	}
}

// Agents that are killed at any time, one after the other and with a runtime of their own, do the
// work of one. TEST_KILL_ROUNDS makes more rounds of it.
func TestLifeAgentsKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	rounds := 1
	if text := os.Getenv("TEST_KILL_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatalf("TEST_KILL_ROUNDS: %v", err)
		}
	}
	n := newNode(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kill := func(a *agent) {
		t.Helper()
		select {
		case <-time.After(time.Duration(random.Int64N(int64(700 * time.Millisecond)))):
		case <-a.ended:
			t.Fatalf("the agent ended, %v:\n%s", a.cmd.ProcessState, a.said())
		}
		a.kill()
	}
	n.start().kill() // with which the runtime is there
	for round := range rounds {
		pod := n.stepwise(fmt.Sprintf("pod%d", round))
		job := n.act(fmt.Sprintf("job%d", round), v1.RestartPolicyNever, nil, actor("main", alone+"say began; sleep 0.1; say ended"))
		loop := n.act(fmt.Sprintf("loop%d", round), v1.RestartPolicyAlways, nil, actor("main", alone+"say began; exit 1"))
		loop.Annotations = map[string]string{lifecycle.BackOffAnnotation: "initial=1s,maximum=1s"}
		pod.Spec.Containers[0].ImagePullPolicy = v1.PullIfNotPresent // there is no registry
		for _, p := range []*v1.Pod{pod, job, loop} {
			n.put(p)
		}
		for range 3 {
			kill(n.launch())
		}
		a := n.start()
		where := fmt.Sprintf("in round %d", round)
		now := n.await("the pods to be as they shall be", func(p pods) bool {
			return p.ready(pod.Name) && (p.inPhase(job.Name, v1.PodSucceeded) || p.inPhase(job.Name, v1.PodFailed)) && container(p.named(loop.Name), "main").RestartCount > 1
		})
		n.wantRunsOnce(now.named(pod.Name), where)
		if began, ended := n.said(job.Name, "main began"), n.said(job.Name, "main ended"); began > 1 || (ended == 1) != now.inPhase(job.Name, v1.PodSucceeded) {
			t.Errorf("%s the job ran %d times, to its end %d times, and is %s", where, began, ended, now.named(job.Name).Status.Phase)
		}
		if began, restarts := n.said(loop.Name, "main began"), container(now.named(loop.Name), "main").RestartCount; began > int(restarts)+2 {
			t.Errorf("%s the container ran %d times, and was restarted %d times", where, began, restarts)
		}
		for _, p := range []*v1.Pod{pod, job, loop} {
			n.remove(p.Name + ".yaml")
		}
		kill(a)
		kill(n.launch())
		n.start().kill()
		a = n.start()
		for _, p := range now {
			n.wantNothingOf(p, where)
			if n.said(p.Name, "main runs twice") > 0 || n.said(p.Name, "hook pre") > 1 {
				t.Errorf("%s: %q", where, n.story(p.Name))
			}
		}
		a.kill()
	}
}

// awaitOrKilled waits until the pods are as they shall be or the tap has killed the agent, and says
// at which step. In the agent's place it starts another.
func (n *node) awaitOrKilled(a **agent, x *tap, holds func(pods) bool) (where string) {
	n.t.Helper()
	until(n.t, "the pods to be as they shall be or the agent to be killed", func() bool {
		now, err := n.list(n.ctx)
		return x.struck() != "" || err == nil && holds(now)
	})
	if where = x.disarm(); where != "" {
		(*a).wait()
		*a = n.start()
	}
	return where
}

// wantNothingOf checks that a removed pod goes and leaves nothing.
func (n *node) wantNothingOf(p *v1.Pod, where string) {
	n.t.Helper()
	left := n.leftOf(p)
	for limit := time.Now().Add(patience(time.Minute)); len(left) > 0 && time.Now().Before(limit); left = n.leftOf(p) {
		n.pause()
	}
	if len(left) > 0 {
		n.t.Errorf("the agent was killed %s: the removed pod has left %q", where, left)
	}
}

// pause lets a little time go by.
func (n *node) pause() {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-n.ctx.Done():
	}
}

// newTappedNode makes a node whose agents reach their runtime, which is not theirs, through a tap.
func newTappedNode(t *testing.T) (*node, *tap) {
	t.Helper()
	runtime, image := startRuntime(t)
	n := newNode(t)
	x, endpoint := n.tapInto(runtime, image)
	n.flags = append(n.flags, "--container-runtime-endpoint", endpoint)
	return n, x
}

// startRuntime starts a runtime that is no agent's, and returns its endpoint and the id of the
// hello image in it.
func startRuntime(t *testing.T) (endpoint, image string) {
	t.Helper()
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	m.runs(r)
	hello, err := m.client(r.Endpoint()).images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: helloImage}})
	if err != nil || hello.Image == nil {
		t.Fatalf("the runtime has no image %s: %v, error %v", helloImage, hello, err)
	}
	return r.Endpoint(), hello.Image.Id
}

// tapInto puts a tap before a runtime. What asks the runtime past the agent finds it as if it were
// the agent's own.
func (n *node) tapInto(runtime, image string) (x *tap, endpoint string) {
	n.t.Helper()
	if err := os.Mkdir(n.place.Run, 0o755); err != nil {
		n.t.Fatal(err)
	}
	socket := n.place.Run + "/containerd.sock"
	if err := os.Symlink(strings.TrimPrefix(runtime, "unix://"), socket); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := os.Remove(socket); err != nil {
			n.t.Errorf("clean up: %v", err)
		}
	})
	return newTap(n.t, n.place.Dir, runtime, image)
}

// stepwise is a pod with all the steps that there are.
func (n *node) stepwise(name string) *v1.Pod {
	n.t.Helper()
	init := actor("init", alone+"say began; sleep 0.1; say ended")
	side := sidecar(actor("side", alone+"stay"))
	main := actor("main", alone+"stay")
	main.ImagePullPolicy = v1.PullAlways
	main.Lifecycle = &v1.Lifecycle{PostStart: hookOf("hook", "say post; sleep 0.1"), PreStop: hookOf("hook", "say pre; sleep 0.1")}
	return n.act(name, v1.RestartPolicyAlways, []v1.Container{init, side}, main)
}

// wantRunsOnce checks that the pod runs, and nothing of it twice.
func (n *node) wantRunsOnce(p *v1.Pod, where string) {
	n.t.Helper()
	if sandboxes, containers := n.running(p); sandboxes != 1 || containers != 2 {
		n.t.Errorf("the agent was killed %s: pod %s has %d sandboxes and %d containers that run, want 1 and 2", where, p.Name, sandboxes, containers)
	}
	for _, name := range []string{"side", "main"} {
		n.awaitStory(p.Name, name+" began")
		if c := container(p, name); c.RestartCount > 1 {
			n.t.Errorf("the agent was killed %s: container %s of %s was restarted %d times", where, name, p.Name, c.RestartCount)
		}
	}
	n.wantStory(p.Name, "init ended", "main began")
	if slices.ContainsFunc(n.story(p.Name), func(l string) bool { return strings.HasSuffix(l, "runs twice") }) {
		n.t.Errorf("the agent was killed %s: %q", where, n.story(p.Name))
	}
}

// leftOf is what there still is of a removed pod, in the runtime and on the host.
func (n *node) leftOf(p *v1.Pod) []string {
	n.t.Helper()
	var left []string
	for _, id := range n.sandboxes(p) {
		left = append(left, "sandbox "+id)
	}
	all, err := n.cri().ListContainers(n.ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.UID)}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range all.Containers {
		left = append(left, "container "+c.Metadata.Name)
	}
	for _, dir := range n.place.cgroupTree() {
		if strings.Contains(filepath.Base(dir), string(p.UID)) {
			left = append(left, dir)
		}
	}
	for _, pattern := range []string{
		filepath.Join(n.podLogs(), "*"+string(p.UID)), filepath.Join(n.logLinks(), p.Name+"_*"), filepath.Join(n.place.Root, "pods", string(p.UID)),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			n.t.Fatal(err)
		}
		left = append(left, found...)
	}
	mounts, err := n.place.mounts()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.Contains(m, string(p.UID)) {
			left = append(left, m)
		}
	}
	return left
}
