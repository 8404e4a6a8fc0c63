package status

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// changes returns the journal entries for the user-visible part of a status: phase, readiness and
// container states. Termination messages are left out, because containers write them and they may
// contain anything.
func changes(p *v1.Pod, old, s *v1.PodStatus) []journal.Entry {
	var out []journal.Entry
	add := func(container, decision, why string) {
		out = append(out, journal.Entry{
			Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
			Component: "status", Container: container, Decision: decision, Why: why,
		})
	}
	before, after := allStatuses(old), allStatuses(s)
	for i := range after {
		cs := &after[i]
		text, why := describeState(cs)
		if was := lifecycle.FindStatus(before, cs.Name); was != nil {
			if wasText, wasWhy := describeState(was); text == wasText && why == wasWhy {
				continue
			}
		}
		if text != "" {
			add(cs.Name, text, why)
		}
	}
	if s.Phase != old.Phase {
		text := "phase " + string(s.Phase)
		if old.Phase != "" {
			text = fmt.Sprintf("phase %s → %s", old.Phase, s.Phase)
		}
		add("", text, joinReason(s.Reason, s.Message))
	}
	switch now := isReady(s); {
	case now && !isReady(old):
		add("", "ready", "")
	case !now && isReady(old):
		c := findCondition(s.Conditions, v1.PodReady)
		if c == nil {
			add("", "not ready", "")
			break
		}
		add("", "not ready", joinReason(c.Reason, c.Message))
	}
	return out
}

// describeState describes a container's state; "" for one that only waits to be started.
func describeState(cs *v1.ContainerStatus) (text, why string) {
	if cs.RestartCount > 0 {
		why = fmt.Sprintf("restart %d", cs.RestartCount)
	}
	switch {
	case cs.State.Running != nil:
		return "running", why
	case cs.State.Terminated != nil:
		t := cs.State.Terminated
		return fmt.Sprintf("terminated with exit code %d (%s)", t.ExitCode, t.Reason), why
	case cs.State.Waiting != nil:
		switch w := cs.State.Waiting; w.Reason {
		case "", lifecycle.ContainerCreating, lifecycle.PodInitializing:
			return "", ""
		default:
			return "waiting: " + w.Reason, w.Message
		}
	}
	return "", ""
}

func joinReason(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}

func isReady(s *v1.PodStatus) bool {
	c := findCondition(s.Conditions, v1.PodReady)
	return c != nil && c.Status == v1.ConditionTrue
}

func allStatuses(s *v1.PodStatus) []v1.ContainerStatus {
	out := make([]v1.ContainerStatus, 0, len(s.InitContainerStatuses)+len(s.ContainerStatuses)+len(s.EphemeralContainerStatuses))
	out = append(out, s.InitContainerStatuses...)
	out = append(out, s.ContainerStatuses...)
	return append(out, s.EphemeralContainerStatuses...)
}
