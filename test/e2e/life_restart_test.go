//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// ruled gives a container a restart policy of its own and a rule for one exit code.
func ruled(c v1.Container, policy v1.ContainerRestartPolicy, code int32, action v1.ContainerRestartRuleAction) v1.Container {
	c.RestartPolicy = &policy
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code}},
	}}
	return c
}

func withPolicy(c v1.Container, policy v1.ContainerRestartPolicy) v1.Container {
	c.RestartPolicy = &policy
	return c
}

// A container's own restart policy comes before its pod's, and its rules for exit codes come before
// both.
func TestLifeRestartRules(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.act("rules", v1.RestartPolicyNever, nil,
		ruled(actor("main", `test $run = 1 && exit 42; exit 7`), v1.ContainerRestartPolicyNever, 42, v1.ContainerRestartRuleActionRestart)))
	n.put(n.act("policies", v1.RestartPolicyNever, nil,
		withPolicy(actor("again", `test $run = 1 && exit 3; exit 0`), v1.ContainerRestartPolicyOnFailure),
		actor("once", "exit 0")))
	n.put(n.act("mixed", v1.RestartPolicyAlways, nil,
		withPolicy(actor("once", "exit 9"), v1.ContainerRestartPolicyNever),
		actor("main", "stay")))
	n.put(n.act("all", v1.RestartPolicyNever,
		[]v1.Container{actor("prepare", "say began"), sidecar(actor("side", "stay"))},
		actor("other", "stay"),
		ruled(actor("work", `test $run = 1 || stay; until test -e /shared/go; do sleep 0.05; done; exit 43`),
			v1.ContainerRestartPolicyNever, 43, v1.ContainerRestartRuleActionRestartAllContainers)))
	n.start()

	now := n.await("the pods that end to end", func(p pods) bool {
		return p.inPhase("rules", v1.PodFailed) && p.inPhase("policies", v1.PodSucceeded)
	})
	rules, policies := now.named("rules"), now.named("policies")
	wantTerminated(t, rules, "main", 7, "Error")
	wantTerminated(t, policies, "again", 0, "Completed")
	for _, c := range []struct {
		pod  *v1.Pod
		name string
		last int32
	}{{rules, "main", 42}, {policies, "again", 3}} {
		got := container(c.pod, c.name)
		if last := got.LastTerminationState.Terminated; got.RestartCount != 1 || last == nil || last.ExitCode != c.last {
			t.Errorf("container %s of %s is %+v, want one restart after code %d", c.name, c.pod.Name, got, c.last)
		}
	}
	if once := container(policies, "once"); once.RestartCount != 0 {
		t.Errorf("a container that succeeded under the policy Never was restarted: %+v", once)
	}

	mixed := n.await("one to end and one to run", func(p pods) bool {
		m := p.named("mixed")
		return container(m, "once").State.Terminated != nil && container(m, "main").State.Running != nil
	}).named("mixed")
	n.signal(mixed, "main", unix.SIGKILL)
	mixed = n.await("the container with its pod's policy to be restarted", func(p pods) bool {
		c := container(p.named("mixed"), "main")
		return c.RestartCount == 1 && c.State.Running != nil
	}).named("mixed")
	wantTerminated(t, mixed, "once", 9, "Error")
	if got := container(mixed, "once").RestartCount; got != 0 || mixed.Status.Phase != v1.PodRunning {
		t.Errorf("the container that is never to be restarted was %d times, the pod is %s", got, mixed.Status.Phase)
	}

	before := n.awaitReady("all").named("all")
	for _, name := range []string{"side", "other"} {
		n.awaitStory("all", name+" began")
	}
	sandboxes := n.sandboxes(before)
	n.mark("all", "go")
	after := n.await("all containers to be restarted", func(p pods) bool {
		return p.ready("all") && container(p.named("all"), "work").RestartCount == 1
	}).named("all")
	if diff := cmp.Diff(sandboxes, n.sandboxes(after)); diff != "" || after.Status.PodIP != before.Status.PodIP {
		t.Errorf("the address was %s and is %s, the sandboxes changed (-before +after):\n%s", before.Status.PodIP, after.Status.PodIP, diff)
	}
	for name, want := range map[string]v1.ContainerStateTerminated{
		"prepare": {Reason: lifecycle.Completed},
		"side":    {Reason: lifecycle.RestartingAllContainers, ExitCode: lifecycle.UnknownExitCode},
		"other":   {Reason: lifecycle.RestartingAllContainers, ExitCode: lifecycle.UnknownExitCode},
		"work":    {Reason: lifecycle.Error, ExitCode: 43},
	} {
		c := container(after, name)
		last := c.LastTerminationState.Terminated
		if c.RestartCount != 1 || last == nil || (name != "prepare" && (last.Reason != want.Reason || last.ExitCode != want.ExitCode)) {
			t.Errorf("container %s is %+v, want one restart after %s with code %d", name, c, want.Reason, want.ExitCode)
		}
	}
	until(t, "all to begin again", func() bool {
		return n.said("all", "prepare began") == 2 && n.said("all", "side began") == 2 && n.said("all", "other began") == 2 && n.said("all", "work began") == 1
	})
	wantInOrder(t, n.explain("all"), "restart all containers", "prepare container started", "side container started", "work container started")
}

// awaitBackOff waits until the container main was restarted at least so many times, and is held
// back for that time. On a busy machine it may have been restarted more often by the time that
// somebody looks.
func (n *node) awaitBackOff(pod string, restarts int32, delay string) *v1.Pod {
	n.t.Helper()
	return n.await(pod+" to be held back for "+delay, func(p pods) bool {
		c := container(p.named(pod), "main")
		return c.RestartCount >= restarts && c.State.Waiting != nil && c.State.Waiting.Reason == lifecycle.CrashLoopBackOff &&
			strings.Contains(c.State.Waiting.Message, "back-off "+delay+" restarting failed container=main pod="+pod+"_")
	}).named(pod)
}

// wantApart checks that each restart of the container came no sooner after the end before it than
// it may.
func wantApart(t *testing.T, ends []journal.End, delays ...time.Duration) {
	t.Helper()
	if len(ends) <= len(delays) {
		t.Fatalf("the journal has %d ends, want more than %d: %+v", len(ends), len(delays), ends)
	}
	for i, delay := range delays {
		if ends[i].Restart != i || ends[i+1].Restart != i+1 {
			t.Errorf("ends %d and %d are of incarnations %d and %d", i, i+1, ends[i].Restart, ends[i+1].Restart)
		}
		if got := ends[i+1].Started.Sub(ends[i].Finished); got < delay {
			t.Errorf("restart %d came after %v, want %v at least", i+1, got, delay)
		}
	}
}

// A container that ends again and again is held back, by its pod's law if that has one. Back-off
// and restart count outlive the agent, the count also the sandbox. When the next try comes is said.
func TestLifeBackOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	crashing := func(name, law string) *v1.Pod {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "say began; exit 4"))
		if law != "" {
			p.Annotations = map[string]string{lifecycle.BackOffAnnotation: law}
		}
		return p
	}
	n.put(crashing("usual", ""))
	n.put(crashing("quick", "initial=1s,maximum=2s,factor=2"))
	n.put(crashing("held", "initial=300s,maximum=300s")) // until the test ends, however slow the machine is
	n.put(crashing("wrong", "initial=never"))
	n.put(n.act("steady", v1.RestartPolicyAlways, nil, actor("main", "stay")))
	a := n.start()

	usual := n.awaitBackOff("usual", 1, "10s")
	if last := container(usual, "main").LastTerminationState.Terminated; last == nil || last.ExitCode != 4 {
		t.Errorf("the last state is %+v, want code 4", last)
	}
	wantMatch(t, "berth explain usual", n.berth("explain", "--all", "usual"), `(?s)Next: at \S+ in \d+s: container "main": next try to start it: crash-loop back-off 10s`)
	next := n.newestStory("usual").Next
	ends := endsOf(n.newestStory("usual"), "main")
	if len(next) != 1 || next[0].Container != "main" || len(ends) != 2 || !next[0].Time.Equal(ends[1].Finished.Add(10*time.Second)) {
		t.Errorf("what comes next is %+v, the ends are %+v; want a try 10 s after the last", next, ends)
	}
	n.awaitBackOff("wrong", 1, "10s")
	wantInOrder(t, n.explain("wrong"), `annotation berth.dev/backoff: initial: "never"`)
	n.awaitEvents("", "InvalidBackOff")

	// A dead container leaves with its pod's sandbox, and is counted all the same.
	steady := n.awaitReady("steady").named("steady")
	n.awaitStory("steady", "main began")
	n.signal(steady, "main", unix.SIGKILL)
	steady = n.await("the container to be restarted", func(p pods) bool {
		return p.ready("steady") && container(p.named("steady"), "main").RestartCount == 1
	}).named("steady")

	n.awaitBackOff("quick", 3, "2s")
	wantApart(t, endsOf(n.newestStory("quick"), "main"), 0, time.Second, 2*time.Second)
	n.awaitBackOff("held", 1, "5m0s")

	// The next agent goes on where this one was.
	a.kill()
	lost := n.sandboxes(steady)
	for _, id := range lost {
		if _, err := n.cri().StopPodSandbox(n.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.cri().RemovePodSandbox(n.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	n.awaitBackOff("held", 1, "5m0s")
	after := n.await("the container to be restarted in another sandbox", func(p pods) bool {
		return p.ready("steady") && container(p.named("steady"), "main").RestartCount == 2
	}).named("steady")
	if after.UID != steady.UID || slices.Equal(n.sandboxes(after), lost) {
		t.Errorf("pod %s is %s now, with the sandboxes %v", steady.UID, after.UID, lost)
	}

	// A sandbox that is lost while its container is held back neither shortens that nor is the
	// count lost.
	quick := n.awaitBackOff("quick", 4, "2s")
	for _, id := range n.sandboxes(quick) {
		if err := unix.Kill(n.pid(id), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	then := container(quick, "main").RestartCount + 1
	n.awaitBackOff("quick", then, "2s")
	story := n.newestStory("quick")
	wantInOrder(t, story.Entries, "sandbox created: attempt 0", "sandbox created: attempt 1", fmt.Sprintf("main container started: restart %d", then))
	wantApart(t, endsOf(story, "main"), 0, time.Second, 2*time.Second, 2*time.Second, 2*time.Second)
	until(t, "the container to have run once more than it says that it was restarted", func() bool {
		now, err := n.list(n.ctx)
		return err == nil && n.said("quick", "main began") == int(container(now.named("quick"), "main").RestartCount)+1
	})
	for _, name := range []string{"usual", "quick", "held", "wrong", "steady"} {
		n.remove(name + ".yaml")
	}
	n.await("the pods to go", func(p pods) bool { return len(p) == 0 })
}
