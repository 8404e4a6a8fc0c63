package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// coming tells what comes next.
type coming struct{ explainer }

// next says what happens without any further event, and when.
func (s coming) next() []string {
	if s.isUnbound() {
		return unbound(s).nextUnbound()
	}
	if lines := claims(s).next(); len(lines) > 0 {
		return append(lines, s.nextAPI()...)
	}
	lines := slices.Concat(s.waits(), pluginsWanted(s.pod), s.awaited(), s.nextAwaited())
	for _, n := range slices.SortedStableFunc(slices.Values(s.timeline.Next), func(a, b journal.Next) int { return a.Time.Compare(b.Time) }) {
		text := n.What
		if n.Container != "" {
			text = fmt.Sprintf("container %q: %s", n.Container, n.What)
		}
		lines = append(lines, fmt.Sprintf("%s: %s", s.dueText(n.Time), joinNonEmpty(": ", text, n.Rule)))
	}
	lines = append(lines, ending(s).nextRestartAll()...)
	if retry, ok := s.nextRetry(); ok {
		lines = append(lines, retry)
	}
	if len(lines) == 0 {
		lines = s.untimed()
	}
	return append(lines, s.nextAPI()...)
}

// untimed says what is awaited where nothing has a time.
func (s coming) untimed() []string {
	p := s.pod
	switch {
	case p == nil || s.timeline.Subject.Namespace == "":
		return nil
	case s.e.Quarantined[p.UID] != "":
		return []string{"nothing, until its spec changes or it is released"}
	case pod.IsTerminal(p.Status.Phase):
		if p.DeletionTimestamp != nil && len(p.Finalizers) > 0 {
			return []string{"as soon as its finalizers are removed, which is not this node's work: the API server lets go of it then"}
		}
		if pod.IsStatic(p) {
			return []string{"nothing: a pod that has ended stays as it is until its manifest is changed or removed"}
		}
		return []string{"nothing: a pod that has ended stays as it is until it is deleted"}
	case lifecycle.IsTrue(p, v1.PodReady):
		return append(s.nextResize(), unready(s).nextFailing()...)
	}
	for _, cs := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		c := pod.FindContainer(&p.Spec, cs.Name)
		if cs.State.Running == nil || cs.Ready || c == nil {
			continue
		}
		started := cs.Started != nil && *cs.Started
		switch {
		case c.StartupProbe != nil && !started:
			return []string{unready(s).probed("startup", c, c.StartupProbe)}
		case c.ReadinessProbe != nil:
			return []string{unready(s).probed("readiness", c, c.ReadinessProbe)}
		case slices.ContainsFunc(p.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name }):
			return []string{fmt.Sprintf("as soon as init container %q ends", c.Name)}
		}
	}
	for _, g := range p.Spec.ReadinessGates {
		if !lifecycle.IsTrue(p, g.ConditionType) {
			return []string{fmt.Sprintf("as soon as the condition %q is true: the pod is ready then", g.ConditionType)}
		}
	}
	if len(s.e.Pulls) > 0 {
		return []string{"as soon as the image is here: the container is created then"}
	}
	if hook := hooks(s).hookAwaited(); hook != "" {
		return []string{hook}
	}
	if container := s.startedNow(); container != "" {
		return []string{fmt.Sprintf("as soon as the container runtime has started container %q, which it is asked to do now", container)}
	}
	return []string{"nothing is timed: the agent acts as soon as something of the pod changes"}
}

// startedNow names the container whose image was found last, to be started with it.
func (s coming) startedNow() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "image" && strings.HasPrefix(e.Decision, "use present image ") {
			return e.Container
		}
		if e.Component != "event" && e.Component != "status" { // they tell of what was before
			return ""
		}
	}
	return ""
}

// nextResize says what becomes of a resize that is not done.
func (s coming) nextResize() []string {
	for _, c := range s.pod.Status.Conditions {
		switch {
		case c.Status != v1.ConditionTrue:
			continue
		case c.Type == v1.PodResizeInProgress && c.Reason == v1.PodReasonError:
			return []string{"within 10 s: the resize is tried again, as every 10 s until it can be done or is taken back"}
		case c.Type == v1.PodResizePending && c.Reason == v1.PodReasonInfeasible:
			return []string{"nothing: this node never does such a resize; it can be taken back, or the pod created again with these resources"}
		}
		if c.Type != v1.PodResizePending || c.Status != v1.ConditionTrue || c.Reason != v1.PodReasonDeferred {
			continue
		}
		if n, ok := shortageOf(c.Message); ok && n[0] > n[2] {
			return []string{"nothing: this node never has as much; the resize can be taken back"}
		}
		return []string{"as soon as other pods end or take less: the resize is tried again then"}
	}
	return nil
}

// slowCall is how long a call may take before that is worth to be told.
const slowCall = 2 * time.Second

// waits tells of calls that the runtime, or a CSI driver, has not answered for long. The pod's
// worker waits for those of the runtime, whatever is wanted of the pod meanwhile.
func (s coming) waits() (lines []string) {
	for _, w := range s.lastingWaits() {
		lines = append(lines, s.waitText(w))
	}
	return lines
}

// pluginsWanted names the device plugins that containers of the pod wait for. Their registration
// has the containers started at once, whatever is timed.
func pluginsWanted(p *v1.Pod) (lines []string) {
	if p == nil {
		return nil
	}
	for _, cs := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if cs.State.Waiting == nil {
			continue
		}
		if _, rest, ok := strings.Cut(cs.State.Waiting.Message, "waiting for the device plugin of "); ok {
			if resource, _, ok := strings.Cut(rest, " to register"); ok {
				lines = append(lines, fmt.Sprintf("as soon as the device plugin of %s registers: container %q is tried again", resource, cs.Name))
			}
		}
	}
	return lines
}

// dueText says when something happens that has a time.
func (s explainer) dueText(t time.Time) string {
	if d := t.Sub(s.now); d > 0 {
		return fmt.Sprintf("at %s, in %s", s.at(t), roundUp(d))
	}
	return "due now"
}

// The worker tries a failed pass again after so long.
const retryLeast, retryMost = 10 * time.Second, 15 * time.Second

// nextRetry says when a pass that failed is tried again, if that is what the worker decided last.
func (s coming) nextRetry() (string, bool) {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "event" || e.Component == "status" { // they tell of it
			continue
		}
		if e.Component != "worker" || !strings.HasSuffix(e.Decision, "failed, to be tried again") || s.now.Sub(e.Time) > retryMost {
			return "", false
		}
		return fmt.Sprintf("between %s and %s: %s", s.at(e.Time.Add(retryLeast)), s.at(e.Time.Add(retryMost)),
			"the failed pass is tried again 10 to 15 s after it failed"), true
	}
	return "", false
}
