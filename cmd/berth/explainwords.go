package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

func endText(code int, reason, message string) string {
	signal := signalOf(code)
	switch {
	case reason == lifecycle.OOMKilled:
		return fmt.Sprintf("was killed for its memory use (OOMKilled, exit code %d)", code)
	case reason == "StartError" || reason == "ContainerCannotRun":
		return fmt.Sprintf("could not be started (%s)", joinNonEmpty(": ", reason, oneLine(message)))
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

// at formats a time of day, with the date if that is not today.
func (s explainer) at(t time.Time) string {
	t = t.In(s.zone)
	if t.Format(time.DateOnly) != s.now.In(s.zone).Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

func (s explainer) agoOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " " + duration.HumanDuration(max(0, s.now.Sub(t))) + " ago"
}

func (s explainer) sinceTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", since " + duration.HumanDuration(max(0, s.now.Sub(t)))
}

func (s explainer) sinceCondition(t v1.PodConditionType) string {
	for _, c := range s.pod.Status.Conditions {
		if c.Type == t {
			return s.sinceTime(c.LastTransitionTime.Time)
		}
	}
	return ""
}

// roundUp rounds a remaining time up to seconds, so that it is never "in 0s".
func roundUp(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// sentence makes a text end with exactly one full stop.
func sentence(text string) string { return strings.TrimRight(text, ". ") + "." }

func joinNonEmpty(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), sep)
}

func statusesOf(p *v1.Pod) []v1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
}

func imageOf(p *v1.Pod, container string) string {
	if c := pod.FindContainer(&p.Spec, container); c != nil {
		return c.Image
	}
	return ""
}
