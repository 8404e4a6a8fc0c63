//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// slowToEnd is the script of a container that is asked to end, and takes a moment.
const slowToEnd = `trap "say asked; sleep 0.3; say ended; exit 0" TERM; say began; sleep infinity & wait`

// Sidecars start in their turn, each when the one before has started up, run beside the rest, come
// back when they die, and end in reverse order when the last of the rest has ended; the pod is over
// then, with the result of the rest.
func TestLifeSidecars(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	gated := sidecar(actor("first", "stay"))
	gated.StartupProbe = marked("up")
	n.put(n.act("staged", v1.RestartPolicyOnFailure,
		[]v1.Container{gated, sidecar(actor("second", slowToEnd)), actor("work", "say began")},
		actor("main", `say began; until test -e /shared/done; do sleep 0.05; done; say ended`)))
	n.put(n.act("failing", v1.RestartPolicyNever,
		[]v1.Container{sidecar(actor("side", "stay"))},
		actor("main", `until grep -q "side began" /shared/story; do sleep 0.05; done; exit 3`)))
	n.put(n.act("leaving", v1.RestartPolicyAlways,
		[]v1.Container{sidecar(actor("first", "stay")), sidecar(actor("second", slowToEnd))},
		actor("main", slowToEnd)))
	n.start()

	// Nothing comes before the first sidecar has started up.
	n.await("the first sidecar to run", func(p pods) bool { return container(p.named("staged"), "first").State.Running != nil })
	until(t, "the startup probe to fail", func() bool {
		return slices.ContainsFunc(n.newestStory("staged").Entries, func(e journal.Entry) bool { return strings.Contains(e.Error+e.Why+e.Decision, "Startup probe failed") })
	})
	staged := n.await("the pod to be shown", func(p pods) bool { return p.named("staged") != nil }).named("staged")
	for _, name := range []string{"second", "work", "main"} {
		if container(staged, name).State.Waiting == nil {
			t.Errorf("%s is %+v, and the sidecar before it has not started up", name, container(staged, name).State)
		}
	}
	if first := container(staged, "first"); first.Started == nil || *first.Started {
		t.Errorf("the first sidecar is %+v, want it not started", first)
	}
	n.mark("staged", "up")
	before := n.awaitReady("staged").named("staged")
	n.awaitStory("staged", "main began")
	n.awaitStory("staged", "second began")
	n.wantStory("staged", "first began", "work began", "main began")
	n.wantStory("staged", "first began", "second began")
	wantInOrder(t, n.explain("staged"), "first container started", "first startup probe: success", "second container started", "work container started", "main container started")

	// A sidecar that dies is started again, and nothing else is touched.
	n.signal(before, "second", unix.SIGKILL)
	after := n.await("the sidecar to be restarted", func(p pods) bool {
		return p.ready("staged") && container(p.named("staged"), "second").RestartCount == 1
	}).named("staged")
	for _, name := range []string{"first", "work", "main"} {
		if got, was := container(after, name), container(before, name); got.ContainerID != was.ContainerID || got.RestartCount != 0 {
			t.Errorf("with the sidecar changed %s from %s to %s, restarts %d", name, was.ContainerID, got.ContainerID, got.RestartCount)
		}
	}
	until(t, "the sidecar to be itself again", func() bool { return n.said("staged", "second began") == 2 })

	n.mark("staged", "done")
	over := func(name string, phase v1.PodPhase, sidecars ...string) *v1.Pod {
		t.Helper()
		return n.await(name+" to be over", func(p pods) bool {
			return p.inPhase(name, phase) && !slices.ContainsFunc(sidecars, func(s string) bool { return container(p.named(name), s).State.Terminated == nil })
		}).named(name)
	}
	staged = over("staged", v1.PodSucceeded, "first", "second")
	n.wantStory("staged", "main ended", "second asked", "second ended", "first asked")
	for _, name := range []string{"first", "second", "work", "main"} {
		wantTerminated(t, staged, name, 0, "Completed")
	}
	failing := over("failing", v1.PodFailed, "side")
	wantTerminated(t, failing, "main", 3, "Error")
	wantTerminated(t, failing, "side", 0, "Completed")
	if sandboxes, containers := n.running(staged); sandboxes+containers > 0 {
		t.Errorf("the pod is over, and %d sandboxes and %d containers of it run", sandboxes, containers)
	}

	leaving := n.awaitReady("leaving").named("leaving")
	for _, name := range []string{"first", "second", "main"} {
		n.awaitStory("leaving", name+" began")
	}
	tr := n.traces(leaving)
	n.remove("leaving.yaml")
	n.awaitGone(leaving.UID)
	n.wantStory("leaving", "main asked", "main ended", "second asked", "second ended", "first asked")
	n.wantGone(tr)
}
