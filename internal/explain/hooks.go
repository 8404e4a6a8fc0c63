package explain

import (
	"cmp"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

var (
	postStartRuns = from("", "wait for the postStart hook*")
	preStopRuns   = from("", "wait for the preStop hook*")
	preStopEnded  = from("", "preStop hook*")
)

func preStopText(f *facts, container string) string {
	e := f.lastSince(preStopEnded.of(container), preStopRuns.of(container))
	if e == nil {
		return ""
	}
	handler := hookText(f, container, func(l *v1.Lifecycle) *v1.LifecycleHandler { return l.PreStop })
	return fmt.Sprintf(", whose preStop hook%s runs%s", handler, f.since(e.Time))
}

// postStart returns the decision to wait for the running postStart hook, or nil.
func postStart(f *facts) *journal.Entry {
	return f.lastSince(isDecision, postStartRuns)
}

func postStartText(f *facts) string {
	e := postStart(f)
	if e == nil {
		return ""
	}
	handler := hookText(f, e.Container, func(l *v1.Lifecycle) *v1.LifecycleHandler { return l.PostStart })
	return fmt.Sprintf(" The postStart hook of container %q%s runs%s.", e.Container, handler, f.since(e.Time))
}

func afterPostStart(f *facts) string {
	e := postStart(f)
	if e == nil {
		return ""
	}
	return fmt.Sprintf("as soon as the postStart hook of container %q ends: the container is ready for its probes, or is killed if the hook failed; hooks have no time limit", e.Container)
}

// hookText describes the action of a hook in parentheses.
func hookText(f *facts, container string, hook func(*v1.Lifecycle) *v1.LifecycleHandler) string {
	l := f.container(container).Lifecycle
	if l == nil || hook(l) == nil {
		return ""
	}
	text := ""
	switch h := hook(l); {
	case h.Exec != nil:
		text = "exec " + strings.Join(h.Exec.Command, " ")
	case h.HTTPGet != nil:
		text = fmt.Sprintf("httpGet port %s, path %s", h.HTTPGet.Port.String(), cmp.Or(h.HTTPGet.Path, "/"))
	case h.TCPSocket != nil:
		text = "tcpSocket port " + h.TCPSocket.Port.String()
	case h.Sleep != nil:
		text = fmt.Sprintf("sleep %d s", h.Sleep.Seconds)
	}
	return fmt.Sprintf(" (%s)", Truncate(OneLine(text), 60))
}
