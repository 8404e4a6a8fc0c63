package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// Exit is a container's exit.
type Exit struct {
	Container string `json:"container"`
	Restart   int    `json:"restart"`
	// Started and Finished are zero if they are unknown.
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// How is how it exited, and why the agent killed it if it did.
	How string `json:"how"`
	// Log is the end of the container's log.
	Log string `json:"log,omitempty"`
}

func exits(f *facts) []Exit {
	var all []Exit
	for _, e := range f.timeline.Ends {
		all = append(all, Exit{
			Container: e.Container, Restart: e.Restart, Started: e.Started, Finished: e.Finished,
			How: exitText(e.ExitCode, e.Reason, e.Message) + killedBy(f, e), Log: e.Log,
		})
	}
	return all
}

func exitText(code int, reason, message string) string {
	signal := signalOf(code)
	switch {
	case reason == lifecycle.OOMKilled:
		return fmt.Sprintf("was killed for its memory use (OOMKilled, exit code %d)", code)
	case reason == "StartError" || reason == "ContainerCannotRun":
		return fmt.Sprintf("could not be started (%s)", joinNonEmpty(": ", reason, OneLine(message)))
	case reason == lifecycle.ContainerStatusUnknown:
		return "ended unseen (ContainerStatusUnknown)"
	case code == 0:
		return "ended with code 0"
	case signal != "":
		return fmt.Sprintf("was ended by %s (exit code %d)", signal, code)
	case reason == "" || reason == lifecycle.Error:
		return fmt.Sprintf("exited with code %d", code)
	}
	return fmt.Sprintf("exited with code %d (%s)", code, reason)
}

// signalOf returns the name of the signal that an exit code stands for, or "".
func signalOf(code int) string {
	if code > 128 && code < 128+65 {
		return unix.SignalName(syscall.Signal(code - 128))
	}
	return ""
}

func fromStatus(t *v1.ContainerStateTerminated) journal.End {
	return journal.End{ExitCode: int(t.ExitCode), Reason: t.Reason, Message: t.Message, Started: t.StartedAt.Time, Finished: t.FinishedAt.Time}
}

// lastEnd returns the container's last exit from the journal, else from its status.
func lastEnd(f *facts, cs *v1.ContainerStatus) (journal.End, bool) {
	for _, e := range slices.Backward(f.timeline.Ends) {
		if e.Container == cs.Name {
			return e, true
		}
	}
	if t := cmp.Or(cs.State.Terminated, cs.LastTerminationState.Terminated); t != nil {
		return fromStatus(t), true
	}
	return journal.End{}, false
}

// lastExit describes the container's last exit, and why it was killed or is restarted.
func lastExit(f *facts, cs *v1.ContainerStatus, lead string) string {
	end, ok := lastEnd(f, cs)
	if !ok {
		return ""
	}
	return lead + exited(f, cs.Name, end) + f.ago(end.Finished) + killedBy(f, end) + restartRule(f, cs.Name, end)
}

func exitStatus(f *facts, cs *v1.ContainerStatus) string {
	t := cs.State.Terminated
	return fmt.Sprintf("container %q %s%s", cs.Name, exited(f, cs.Name, fromStatus(t)), f.ago(t.FinishedAt.Time))
}

// exited describes a container's exit, with the exceeded limit and whether the agent sent the
// signal.
func exited(f *facts, container string, end journal.End) string {
	text := exitText(end.ExitCode, end.Reason, end.Message)
	if end.Reason == lifecycle.OOMKilled && f.pod != nil {
		return strings.Replace(text, " (OOMKilled", memoryLimit(f, container, end)+" (OOMKilled", 1)
	}
	if signalOf(end.ExitCode) != "" && end.Container != "" && killedBy(f, end) == "" && !agentStopped(f, end) {
		text += ", which the agent did not send,"
	}
	return text
}

func memoryLimit(f *facts, container string, end journal.End) string {
	if kill := oomKill(f, end); kill != "" {
		return ": " + kill
	}
	if limit, ok := f.container(container).Resources.Limits[v1.ResourceMemory]; ok {
		return fmt.Sprintf(", which went over its limit of %s", limit.String())
	}
	if r := f.pod.Spec.Resources; r != nil {
		if limit, ok := r.Limits[v1.ResourceMemory]; ok {
			return fmt.Sprintf(", which went over the limit of its pod, %s", limit.String())
		}
	}
	return "; neither it nor its pod has a memory limit"
}

func oomKill(f *facts, end journal.End) string {
	return f.note(from("event", "OOMKilled").of(end.Container).since(end.Started).until(end.Finished.Add(time.Second)),
		func(e *journal.Entry) string { return OneLine(cmp.Or(e.Error, e.Why)) })
}

// agentStopped reports whether the agent stopped the container, or may have.
func agentStopped(f *facts, end journal.End) bool {
	if f.pod == nil || f.pod.DeletionTimestamp != nil || len(f.timeline.Entries) == 0 || f.timeline.Entries[0].Time.After(end.Started) {
		return true // the decisions of that time are not recorded any more
	}
	stopped := from("", "container stopped").of(end.Container)
	return f.last(stopped.since(end.Started)) != nil || f.last(from("", "end the pod").since(end.Started)) != nil
}

// killedBy returns why the agent killed a container, if it did: a Killing event precedes the exit.
func killedBy(f *facts, end journal.End) string {
	return f.note(from("event", "Killing").of(end.Container).since(end.Started).until(end.Finished),
		func(e *journal.Entry) string { return ", killed by the agent" + stopReason(f, e, end) })
}

// stopCauses are decisions that make the agent stop a container.
var stopCauses = []string{"liveness probe: failure", "startup probe: failure", "postStart hook failed"}

// stopReason returns why the agent stopped a container, after a comma or a colon.
func stopReason(f *facts, killing *journal.Entry, end journal.End) string {
	inputs := func(e *journal.Entry) string { why, _, _ := strings.Cut(e.Why, " ["); return OneLine(why) }
	if e := f.last(from("runtime", "stop the pod, create sandbox*").since(killing.Time.Add(1 - time.Second)).until(killing.Time)); e != nil {
		return ", for another sandbox of the pod: " + inputs(e)
	}
	field := "spec.containers[" + end.Container + "]"
	causes := match(func(e *journal.Entry) bool {
		return e.Container == end.Container && slices.Contains(stopCauses, e.Decision) || e.Decision == "changed" && strings.Contains(e.Why, field)
	})
	reason := ": " + OneLine(killing.Why) + f.note(causes.since(end.Started).until(end.Finished), func(e *journal.Entry) string {
		if e.Decision == "changed" {
			return " (" + changeOf(e.Why, field) + ")"
		}
		return " (" + OneLine(joinNonEmpty("; ", e.Error, e.Why)) + ")"
	})
	if restartsAll(killing) {
		reason += f.note(restartAll.until(killing.Time), func(e *journal.Entry) string { return " (" + inputs(e) + ")" })
	}
	return reason
}

// restartAll matches the decision for which restartsAll containers are stopped.
var restartAll = from("runtime", "restart all containers*")

func restartsAll(killing *journal.Entry) bool {
	return strings.Contains(killing.Why, "restarted with all containers")
}

// changeOf returns the old and the new value of a changed field from the inputs of a decision.
func changeOf(why, field string) string {
	if i := strings.Index(why, field); i >= 0 {
		why, _, _ = strings.Cut(why[i:], "; ")
	}
	return OneLine(strings.TrimSuffix(why, "."))
}

// stopping returns a container that the agent is stopping, and the event of that, or nil.
func stopping(f *facts) (*v1.ContainerStatus, *journal.Entry) {
	for _, cs := range f.statuses() {
		if cs.State.Running == nil {
			continue
		}
		killing := from("event", "Killing").since(cs.State.Running.StartedAt.Time)
		if e := f.lastSince(from("", "container st*").of(cs.Name), killing.of(cs.Name)); e != nil { // started or stopped
			return &cs, e
		}
	}
	return nil, nil
}

func stoppingText(f *facts) string {
	cs, e := stopping(f)
	if e == nil {
		return ""
	}
	end := journal.End{Container: cs.Name, Started: cs.State.Running.StartedAt.Time, Finished: f.now}
	text := fmt.Sprintf("runs, and its container %q is being stopped%s%s.", cs.Name, f.since(e.Time), stopReason(f, e, end))
	if hook := preStopText(f, cs.Name); hook != "" {
		text += fmt.Sprintf(" Container %q%s.", cs.Name, strings.Replace(hook, ", whose preStop hook", ": its preStop hook", 1))
	}
	return text
}

// terminationMessage returns the container's termination message.
func terminationMessage(t *v1.ContainerStateTerminated) string {
	if t.Message == "" || slices.Contains([]string{"StartError", "ContainerCannotRun", lifecycle.ContainerStatusUnknown}, t.Reason) {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(t.Message), "\n")
	return fmt.Sprintf(", saying %q", OneLine(lines[len(lines)-1]))
}

// restartRule returns the rule by which a container is restarted after the exit, if that is not
// plain from its restart policy.
func restartRule(f *facts, container string, end journal.End) string {
	c := pod.FindContainer(&f.pod.Spec, container)
	if c == nil || killedBy(f, end) != "" {
		return ""
	}
	if end.ExitCode == 0 && len(c.RestartPolicyRules) == 0 && lifecycle.RestartPolicy(f.pod, c) == v1.RestartPolicyAlways {
		return ", which is a success, and restartPolicy: Always restarts containers after a success too"
	}
	for i, r := range c.RestartPolicyRules {
		one := v1.Container{RestartPolicyRules: []v1.ContainerRestartRule{r}}
		if action, ok := lifecycle.MatchingRule(&one, int32(end.ExitCode)); ok {
			codes := strings.Trim(strings.ReplaceAll(fmt.Sprint(r.ExitCodes.Values), " ", ", "), "[]")
			return fmt.Sprintf(", for which rule %d of its restartPolicyRules (exitCodes %s %s) has the action %s", i+1, r.ExitCodes.Operator, codes, action)
		}
	}
	return ""
}

func noRestartRule(f *facts, container string) string {
	c := pod.FindContainer(&f.pod.Spec, container)
	if c == nil {
		return "its pod has failed"
	}
	policy := "its restart policy is " + string(cmp.Or(lifecycle.RestartPolicy(f.pod, c), v1.RestartPolicyAlways))
	if len(c.RestartPolicyRules) > 0 {
		return "none of its restart rules matches, and " + policy
	}
	return policy
}

func restarts(f *facts) string {
	var b strings.Builder
	for _, cs := range f.statuses() {
		if cs.RestartCount > 0 && cs.State.Running != nil {
			fmt.Fprintf(&b, " Container %q has been restarted %s%s.", cs.Name, times(int(cs.RestartCount)), lastExit(f, &cs, "; it last "))
		}
	}
	return b.String()
}
