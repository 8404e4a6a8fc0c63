//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod/lifecycle"
)

// deaf is the script of a container that hears that it is to end, and does not.
const deaf = `trap "say asked" TERM; say began; while :; do sleep 0.1; done`

// A container has its grace period to end, of which its preStop hook takes a part, and is killed
// then; one that ends earlier is not waited for.
func TestLifeGrace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	act := func(name string, grace int64, main v1.Container) {
		p := n.act(name, v1.RestartPolicyAlways, nil, main)
		p.Spec.TerminationGracePeriodSeconds = &grace
		n.put(p)
	}
	hooked := func(main v1.Container, script string) v1.Container {
		main.Lifecycle = &v1.Lifecycle{PreStop: hookOf("hook", script)}
		return main
	}
	act("deaf", 3, actor("main", deaf))
	act("hooked", 4, hooked(actor("main", deaf), "say began; sleep 2; say ended"))
	act("held", 3, hooked(actor("main", deaf), "say began; sleep 600; say ended"))
	act("polite", 600, hooked(actor("main", `trap "say asked; exit 7" TERM; say began; sleep infinity & wait`), "say ended"))
	n.start()
	names := []string{"deaf", "hooked", "held", "polite"}
	now := n.awaitReady(names...)
	var all []traces
	for _, name := range names {
		n.awaitStory(name, "main began")
		all = append(all, n.traces(now.named(name)))
	}
	began := time.Now()
	for _, name := range names {
		n.remove(name + ".yaml")
	}
	n.await("the pods to go", func(p pods) bool { return len(p) == 0 })
	for name, want := range map[string]struct {
		least    time.Duration // from the removal of the manifest to the container's end
		code     int
		grace    string // what the hook has left of the grace period
		hasEnded bool
	}{
		"deaf":   {least: 3 * time.Second, code: 137, grace: "grace 3s"},
		"hooked": {least: 4 * time.Second, code: 137, grace: "grace 2s", hasEnded: true},
		"held":   {least: 3 * time.Second, code: 137, grace: "grace 2s"}, // the least that there is
		"polite": {code: 7, hasEnded: true},
	} {
		story := n.newestStory(name)
		ends := endsOf(story, "main")
		if len(ends) != 1 || ends[0].ExitCode != want.code || ends[0].Reason != lifecycle.Error {
			t.Errorf("%s: the ends are %+v, want one with code %d", name, ends, want.code)
			continue
		}
		if took := ends[0].Finished.Sub(began); took < want.least {
			t.Errorf("%s ended after %v, want %v at least", name, took, want.least)
		}
		n.wantStory(name, "main began", "main asked")
		if got := n.said(name, "hook ended") == 1; got != want.hasEnded {
			t.Errorf("%s: the hook has ended: %v, want %v: %q", name, got, want.hasEnded, n.story(name))
		}
		if want.hasEnded {
			n.wantStory(name, "hook ended", "main asked")
		}
		stopped := entryOf(t, story.Entries, "main", "container stopped")
		if want.grace != "" && stopped.Why != want.grace {
			t.Errorf("%s was stopped with %q, want %q", name, stopped.Why, want.grace)
		}
	}
	wantInOrder(t, n.explain("held"), "main preStop hook ended", "main FailedPreStopHook", "main container stopped")
	for _, tr := range all {
		n.wantGone(tr)
	}
}

// How a container ended is in its status: code, reason, and the words that it left; also how the
// one before it did.
func TestLifeEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	never := func(name string, main v1.Container) *v1.Pod { return n.act(name, v1.RestartPolicyNever, nil, main) }
	n.put(never("completed", actor("main", "echo fine > /dev/termination-log")))
	n.put(never("failed", actor("main", "exit 7")))
	missing := actor("main", "")
	missing.Command = []string{"/missing"}
	n.put(never("missing", missing))
	again := actor("main", "exit 0")
	again.Command = []string{"/missing"}
	n.put(n.act("again", v1.RestartPolicyAlways, nil, again))
	greedy := actor("main", "exec tail /dev/zero")
	greedy.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Mi")}
	n.put(never("greedy", greedy))
	n.put(never("wordy", actor("main", `head -c 5000 /dev/zero | tr '\0' x > /dev/termination-log; echo end >> /dev/termination-log; exit 1`)))
	logged := actor("main", `i=0; while test $i -lt 100; do i=$((i+1)); echo line $i of a hundred, and no file; done; exit 1`)
	logged.TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	n.put(never("logged", logged))
	both := actor("main", `echo in the log; echo in the file > /words; exit 1`)
	both.TerminationMessagePolicy, both.TerminationMessagePath = v1.TerminationMessageFallbackToLogsOnError, "/words"
	n.put(never("both", both))
	n.put(n.act("last", v1.RestartPolicyOnFailure, nil, actor("main", `test $run = 2 && stay; echo run $run > /dev/termination-log; echo the log of $run; exit $((run + 4))`)))
	a := n.start()

	now := n.await("the pods to end", func(p pods) bool {
		for _, name := range []string{"failed", "missing", "greedy", "wordy", "logged", "both"} {
			if !p.inPhase(name, v1.PodFailed) {
				return false
			}
		}
		w := container(p.named("again"), "main")
		return p.inPhase("completed", v1.PodSucceeded) && p.ready("last") && container(p.named("last"), "main").RestartCount == 1 && w.State.Waiting != nil && w.State.Waiting.Reason == lifecycle.CrashLoopBackOff
	})
	for name, want := range map[string]struct {
		code   int32
		reason string
	}{
		"completed": {0, "Completed"},
		"failed":    {7, "Error"},
		"missing":   {128, "StartError"},
		"greedy":    {137, "OOMKilled"},
		"wordy":     {1, "Error"},
		"logged":    {1, "Error"},
		"both":      {1, "Error"},
	} {
		wantTerminated(t, now.named(name), "main", want.code, want.reason)
	}
	message := func(name string) string {
		if end := container(now.named(name), "main").State.Terminated; end != nil {
			return end.Message
		}
		return ""
	}
	if got, want := message("completed"), "fine\n"; got != want {
		t.Errorf("the words of the container are %q, want %q", got, want)
	}
	wantText(t, "the message of the container that cannot start", message("missing"), "/missing")
	if got, want := message("wordy"), strings.Repeat("x", 4092)+"end\n"; got != want {
		t.Errorf("of the long file %d bytes are left, %.8q…%.8q; want the last 4096", len(got), got, got[max(0, len(got)-8):])
	}
	if got := message("logged"); len(got) > 2048 || !strings.HasSuffix(got, "line 100 of a hundred, and no file\n") || strings.Contains(got, "line 20 of") || !strings.Contains(got, "line 60 of") {
		t.Errorf("the message is not the end of the log, of at most 80 lines and 2048 bytes, but %d bytes: %q", len(got), got)
	}
	if got, want := message("both"), "in the file\n"; got != want {
		t.Errorf("the message is %q, want %q: a file that was written comes before the log", got, want)
	}
	if last := container(now.named("again"), "main").LastTerminationState.Terminated; last == nil || last.Reason != "StartError" || last.ExitCode != 128 {
		t.Errorf("the last state of the container that cannot start is %+v, want StartError with code 128", last)
	}
	wantInOrder(t, n.explain("missing"), "main Failed:", "terminated with exit code 128 (StartError)")

	before := container(now.named("last"), "main")
	if last := before.LastTerminationState.Terminated; before.RestartCount != 1 || last == nil || last.ExitCode != 5 || last.Reason != "Error" ||
		last.Message != "run 1\n" || last.StartedAt.IsZero() || last.FinishedAt.Before(&last.StartedAt) || last.ContainerID == before.ContainerID {
		t.Errorf("the container is %+v, want one restart after the end of the first with code 5 and its words", before)
	}
	wantText(t, "the log before", n.berth("logs", "-p", "last"), "the log of 1")

	// All of it is known to the next agent.
	a.kill()
	n.start()
	later := n.await("the pods to be as they were", func(p pods) bool {
		for _, name := range []string{"failed", "missing", "greedy", "wordy", "logged", "both"} {
			if !p.inPhase(name, v1.PodFailed) {
				return false
			}
		}
		return p.inPhase("completed", v1.PodSucceeded) && p.ready("last")
	})
	for _, name := range []string{"completed", "failed", "missing", "greedy", "wordy", "logged", "both", "last"} {
		if got, want := container(later.named(name), "main"), container(now.named(name), "main"); got.State.String() != want.State.String() ||
			got.LastTerminationState.String() != want.LastTerminationState.String() || got.RestartCount != want.RestartCount {
			t.Errorf("%s was\n%+v\nand is to the next agent\n%+v", name, want, got)
		}
	}
}
