package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// hooks explains container hooks.
type hooks struct{ explainer }

// hookNote returns hookText as a sentence.
func (s hooks) hookNote(container string) string {
	if text := s.hookText(container); text != "" {
		return fmt.Sprintf(" Container %q%s.", container, strings.Replace(text, ", whose preStop hook", ": its preStop hook", 1))
	}
	return ""
}

// hookText describes the running preStop hook of the container.
func (s hooks) hookText(container string) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		switch {
		case e.Container != container:
		case strings.HasPrefix(e.Decision, "wait for the preStop hook"):
			return fmt.Sprintf(", whose preStop hook%s runs%s", s.hookCommand(container, preStop), s.sinceTime(e.Time))
		case strings.HasPrefix(e.Decision, "preStop hook"):
			return ""
		}
	}
	return ""
}

// hookRuns returns the decision to wait for the running postStart hook.
func (s hooks) hookRuns() (*journal.Entry, bool) {
	for i := range slices.Backward(s.timeline.Entries) {
		e := &s.timeline.Entries[i]
		switch {
		case strings.HasPrefix(e.Decision, "wait for the postStart hook"):
			return e, true
		case e.Component != "event" && e.Component != "status":
			return nil, false
		}
	}
	return nil, false
}

// aboutHook describes the running postStart hook, or "".
func (s hooks) aboutHook() string {
	e, ok := s.hookRuns()
	if !ok {
		return ""
	}
	return fmt.Sprintf(" The postStart hook of container %q%s runs%s.", e.Container, s.hookCommand(e.Container, postStart), s.sinceTime(e.Time))
}

// hookAwaited reports what follows the running postStart hook, or "".
func (s hooks) hookAwaited() string {
	e, ok := s.hookRuns()
	if !ok {
		return ""
	}
	return fmt.Sprintf("as soon as the postStart hook of container %q ends: the container is ready for its probes, or is killed if the hook failed; hooks have no time limit", e.Container)
}

func postStart(l *v1.Lifecycle) *v1.LifecycleHandler { return l.PostStart }
func preStop(l *v1.Lifecycle) *v1.LifecycleHandler   { return l.PreStop }

// hookCommand describes a hook's action in parentheses.
func (s hooks) hookCommand(container string, hook func(*v1.Lifecycle) *v1.LifecycleHandler) string {
	c := pod.FindContainer(&s.pod.Spec, container)
	if c == nil || c.Lifecycle == nil || hook(c.Lifecycle) == nil {
		return ""
	}
	text := ""
	switch h := hook(c.Lifecycle); {
	case h.Exec != nil:
		text = "exec " + strings.Join(h.Exec.Command, " ")
	case h.HTTPGet != nil:
		text = fmt.Sprintf("httpGet port %s, path %s", h.HTTPGet.Port.String(), cmp.Or(h.HTTPGet.Path, "/"))
	case h.TCPSocket != nil:
		text = "tcpSocket port " + h.TCPSocket.Port.String()
	case h.Sleep != nil:
		text = fmt.Sprintf("sleep %d s", h.Sleep.Seconds)
	}
	return fmt.Sprintf(" (%s)", cutTo(oneLine(text), 60))
}
