//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
	"berth/internal/record/journal"
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

// A container whose own process takes too much ends with the reason OOMKilled. One whose child does
// goes on, and that is told too; on cgroup version 2, all of it ends.
func TestOOMKills(t *testing.T) {
	t.Parallel()
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
		wantText(t, "explain", n.berth("explain", "--all", pod), "OOMKilled", "process tail")
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
	until(t, "the events to have two kills", func() bool { return strings.Count(n.events(""), "OOMKilled") == 2 })
}

// An agent that comes back tells of a kill while there was none, and of none again. Where the
// container ends with its child (cgroup version 2), it ended for want of memory.
func TestOOMKillsWhileTheAgentIsAway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.act("pair", v1.RestartPolicyNever, nil,
		limited(actor("early", "tail /dev/zero; stay"), "32Mi"),
		limited(actor("late", "while [ ! -e /shared/go ]; do sleep 0.1; done; tail /dev/zero; say child killed; stay"), "32Mi")))
	a := n.start()
	until(t, "the first kill to be told", func() bool { return len(n.kills("pair", "early")) == 1 })
	pair := n.await("the other container to run", func(p pods) bool { return container(p.named("pair"), "late").State.Running != nil }).named("pair")
	shell := n.pid(containerID(pair, "late"))
	// What an agent told a moment before it is killed may be told again.
	until(t, "the first kill to be kept as told", func() bool {
		b, err := os.ReadFile(filepath.Join(n.place.Root, "oom_kills.json"))
		return err == nil && strings.Contains(string(b), containerID(pair, "early"))
	})
	a.kill()
	n.mark("pair", "go")
	version, _ := cgroups.Detect()
	if version == 2 {
		until(t, "the container to be killed", func() bool { return unix.Kill(shell, 0) == unix.ESRCH })
	} else {
		n.awaitStory("pair", "late child killed")
	}
	n.start()
	until(t, "the second kill to be told", func() bool { return len(n.kills("pair", "late")) > 0 })
	wantText(t, "the journal", n.kills("pair", "late")[0].Error, "process tail (pid ", "of container late", "memory limit of the ", "of 32Mi)")
	for _, name := range []string{"early", "late"} {
		if told := n.kills("pair", name); len(told) > 1 {
			t.Errorf("the kill in %s is told again: %v", name, told)
		}
		if version == 2 {
			pair := n.await(name+" to have ended", func(p pods) bool { return container(p.named("pair"), name).State.Terminated != nil }).named("pair")
			wantTerminated(t, pair, name, 137, "OOMKilled")
		}
	}
}
