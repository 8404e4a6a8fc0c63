package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// lastEntry returns the newest entry, an empty one if there is none.
func lastEntry(f *facts) journal.Entry {
	if n := len(f.timeline.Entries); n > 0 {
		return f.timeline.Entries[n-1]
	}
	return journal.Entry{}
}

func lastError(f *facts) string { return OneLine(lastEntry(f).Error) }
func lastTime(f *facts) string  { return f.at(lastEntry(f).Time) }

func why(decision string) fragment { return func(f *facts) string { return f.why(decision) } }

func problems(f *facts) string {
	var texts []string
	for _, p := range f.Problems {
		texts = append(texts, OneLine(p.Message))
	}
	return strings.Join(texts, "; ")
}

func podName(f *facts) string { return f.pod.Namespace + "/" + f.pod.Name }
func crash(f *facts) string   { return OneLine(f.Quarantined[f.pod.UID]) }

// crashes reports since when the pod is in quarantine, after how many crashes, and the rule.
func crashes(f *facts) string {
	const then = ". Its containers go on. "
	return cmp.Or(f.note(func(e *journal.Entry) bool { return strings.Contains(e.Why, then) }, func(e *journal.Entry) string {
		crashes, _, _ := strings.Cut(e.Why, then)
		return fmt.Sprintf("%s: %s", f.since(e.Time), crashes)
	}), ": the agent crashed again and again with it in hand")
}

func failedFor(f *facts) string {
	if failure := failure(f); failure != "" {
		return "has failed:" + failure
	}
	return ""
}

func failedContainer(f *facts) string {
	for _, cs := range f.statuses() {
		if t := cs.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("has failed: %s%s, and is not restarted: %s.", exitStatus(f, &cs), terminationMessage(t), noRestartRule(f, cs.Name))
		}
	}
	return ""
}

// container names the container that keeps the pod from running or from being ready.
func container(f *facts) string { return cmp.Or(f.blocking, f.unready).Name }

func probeOf(kind string) fragment {
	return func(f *facts) string { return probeText(f, container(f), kind) }
}

func initSince(f *facts) string { return f.since(f.blocking.State.Running.StartedAt.Time) }

func initNumber(f *facts) string {
	i := slices.IndexFunc(f.pod.Status.InitContainerStatuses, func(cs v1.ContainerStatus) bool { return cs.Name == f.blocking.Name })
	return fmt.Sprintf("%d of %d", i+1, len(f.pod.Spec.InitContainers))
}

func exitOf(f *facts) string        { return exitStatus(f, f.blocking) }
func restartCount(f *facts) string  { return count(int(f.blocking.RestartCount), "restart", "restarts") }
func crashLoopExit(f *facts) string { return lastExit(f, f.blocking, ". It ") }

func waitingReason(f *facts) string  { return f.blocking.State.Waiting.Reason }
func waitingMessage(f *facts) string { return OneLine(f.blocking.State.Waiting.Message) }

func rootUser(f *facts) string {
	message := f.blocking.State.Waiting.Message
	if !strings.Contains(message, "non-root") && !strings.Contains(message, "runAsNonRoot") {
		return ""
	}
	return f.note(from("runtime", "refuse to run as root").of(f.blocking.Name), func(e *journal.Entry) string { return ": " + OneLine(e.Why) })
}

func hasReadinessProbe(f *facts, cs *v1.ContainerStatus) bool {
	return f.container(cs.Name).ReadinessProbe != nil
}

func gate(f *facts) string { return string(openGate(f)) }

func readySince(f *facts) string { return f.since(f.condition(v1.PodReady).LastTransitionTime.Time) }

func readyReason(f *facts) string {
	c := f.condition(v1.PodReady)
	return OneLine(joinNonEmpty(": ", c.Reason, c.Message))
}

func resize(f *facts) string {
	for _, c := range f.pod.Status.Conditions {
		what, known := map[v1.PodConditionType]string{v1.PodResizePending: "A resize of it waits", v1.PodResizeInProgress: "A resize of it is under way"}[c.Type]
		if known && c.Status == v1.ConditionTrue {
			return fmt.Sprintf(" %s%s: %s.", what, f.since(c.LastTransitionTime.Time), OneLine(joinNonEmpty(": ", c.Reason, cmp.Or(shortageIn(c.Message), c.Message))))
		}
	}
	return ""
}

func otherProblems(f *facts) string {
	var b strings.Builder
	for _, cs := range f.pod.Status.EphemeralContainerStatuses {
		if w := cs.State.Waiting; w != nil && w.Message != "" {
			fmt.Fprintf(&b, " Ephemeral container %q is not started (%s): %s", cs.Name, w.Reason, sentence(OneLine(w.Message)))
		}
		if t := cs.State.Terminated; t != nil {
			fmt.Fprintf(&b, " Ephemeral %s%s; it is not started again.", exitStatus(f, &cs), terminationMessage(t))
		}
	}
	for _, cs := range f.statuses() {
		b.WriteString(oomKilledChild(f, &cs))
		for _, r := range cs.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				if d.Health == v1.ResourceHealthStatusUnhealthy {
					fmt.Fprintf(&b, " Device %s of %s, which container %q has, is unhealthy; the container goes on with it.", d.ResourceID, r.Name, cs.Name)
				}
			}
		}
	}
	for _, p := range f.Problems {
		if isError(p) {
			fmt.Fprintf(&b, " Its manifest was changed and is refused, and the pod goes on as it was: %s", OneLine(p.Message))
		}
	}
	return b.String()
}

// oomKilledChild reports an OOM kill in a container that still runs.
func oomKilledChild(f *facts, cs *v1.ContainerStatus) string {
	if cs.State.Running == nil {
		return ""
	}
	kill := oomKill(f, journal.End{Container: cs.Name, Started: cs.State.Running.StartedAt.Time, Finished: f.now})
	if end, ok := lastEnd(f, cs); kill == "" || ok && kill == oomKill(f, end) { // the kill belongs to the previous exit
		return ""
	}
	return fmt.Sprintf(" In container %q, which goes on, %s.", cs.Name, kill)
}

// recentFor is how long after a restart of the agent or the runtime an answer mentions it.
const recentFor = 10 * time.Minute

// recentRestarts reports restarts of the agent and the runtime, and a hook that such a restart
// interrupted.
func recentRestarts(f *facts) string {
	recent := f.now.Add(-recentFor)
	agent := f.note(from("", "go on with the pod as it runs").since(recent), func(e *journal.Entry) string {
		return fmt.Sprintf(" The agent was started again%s; nothing of the pod was.", f.ago(e.Time))
	})
	broken := match(func(e *journal.Entry) bool { return strings.HasSuffix(e.Decision, "hook broken off") })
	hook := f.note(broken.since(recent), func(e *journal.Entry) string {
		return fmt.Sprintf(" The %s of container %q was broken off at %s, as the agent ended; it is not run again.", strings.TrimSuffix(e.Decision, " broken off"), e.Container, f.at(e.Time))
	})
	runtime := f.note(from("", "the container runtime answers again").since(recent), func(e *journal.Entry) string {
		return fmt.Sprintf(" The container runtime answers again since %s, after %s without; nothing of the pod was restarted for it.",
			strings.TrimSpace(strings.TrimSuffix(f.ago(e.Time), " ago")), RoundDuration(e.Took))
	})
	return agent + hook + runtime
}
