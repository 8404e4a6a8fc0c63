//go:build e2e

package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/cgroups"
	"berth/internal/journal"
)

// limited bounds the container's memory.
func limited(c v1.Container, memory string) v1.Container {
	c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}
	return c
}

// kills returns what the journal has of OOM kills in the container.
func (n *node) kills(pod, container string) []journal.Entry {
	n.t.Helper()
	var out []journal.Entry
	for _, e := range n.explain(pod) {
		if e.Decision == "OOMKilled" && e.Container == container {
			out = append(out, e)
		}
	}
	return out
}

// A container whose own process takes too much ends with the reason OOMKilled. One whose child does goes on, and that is told too;
// on cgroup version 2, all of it ends.
func TestOOMKills(t *testing.T) {
	n := newNode(t)
	n.put(n.act("hog", v1.RestartPolicyNever, nil, limited(actor("main", "say began; exec tail /dev/zero"), "32Mi")))
	n.put(n.act("parent", v1.RestartPolicyNever, nil, limited(actor("main", "tail /dev/zero; say child ended with $?; stay"), "32Mi"), actor("other", "stay")))
	n.start()
	hog := n.await("the hog to fail", func(p pods) bool { return p.inPhase("hog", v1.PodFailed) }).named("hog")
	wantTerminated(t, hog, "main", 137, "OOMKilled")
	version, _ := cgroups.Detect()
	if version == 2 {
		parent := n.await("the parent to end with its child", func(p pods) bool { return container(p.named("parent"), "main").State.Terminated != nil }).named("parent")
		wantTerminated(t, parent, "main", 137, "OOMKilled")
	} else {
		n.awaitStory("parent", "main child ended with 137")
		n.awaitStory("parent", "main began")
	}
	for _, pod := range []string{"hog", "parent"} {
		until(t, "the kill in "+pod+" to be told", func() bool { return len(n.kills(pod, "main")) == 1 })
		wantText(t, "the journal of "+pod, n.kills(pod, "main")[0].Error, "process tail (pid ", "of container main", "memory limit of the ", "of 32Mi)")
		wantText(t, "explain", n.berth("explain", pod), "OOMKilled", "process tail")
	}
	if said := n.kills("parent", "other"); len(said) > 0 {
		t.Errorf("kills are told of the other container: %v", said)
	}
	if version == 2 {
		return
	}
	parent := n.await("the parent to run", func(p pods) bool { return p.ready("parent") }).named("parent")
	if c := container(parent, "main"); c.State.Running == nil || c.RestartCount != 0 {
		t.Errorf("the parent is %+v, want it running as if nothing had happened", c)
	}
	if events := n.berth("events"); strings.Count(events, "OOMKilled") != 2 {
		t.Errorf("events have not two kills:\n%s", events)
	}
}

// An agent that comes back tells of kills while there was none, and of no other again.
func TestOOMKillsWhileTheAgentIsAway(t *testing.T) {
	n := newNode(t)
	n.put(n.act("parent", v1.RestartPolicyNever, nil,
		limited(actor("main", "tail /dev/zero; say killed once; while [ ! -e /shared/again ]; do sleep 0.1; done; tail /dev/zero; say killed twice; stay"), "32Mi")))
	a := n.start()
	n.awaitStory("parent", "main killed once")
	until(t, "the first kill to be told", func() bool { return len(n.kills("parent", "main")) == 1 })
	first := n.kills("parent", "main")[0].Error
	a.kill()
	n.mark("parent", "again")
	n.awaitStory("parent", "main killed twice")
	n.start()
	// What the first agent told may have gone with it: it was killed a moment later.
	until(t, "the second kill to be told", func() bool {
		kills := n.kills("parent", "main")
		return len(kills) > 0 && kills[len(kills)-1].Error != first
	})
	var again int
	for _, k := range n.kills("parent", "main") {
		if k.Error == first {
			again++
		}
	}
	if again > 1 {
		t.Errorf("the first kill is told again: %v", n.kills("parent", "main"))
	}
}
