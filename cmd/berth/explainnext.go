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

// coming explains what happens next.
type coming struct{ explainer }

// next reports what happens without a further event, and when.
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

// untimed reports what the pod waits for if no timer is set.
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

// startedNow names the container whose image was found last and that starts next.
func (s coming) startedNow() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "image" && strings.HasPrefix(e.Decision, "use present image ") {
			return e.Container
		}
		if e.Component != "event" && e.Component != "status" { // events and statuses report earlier decisions
			return ""
		}
	}
	return ""
}

// nextResize reports what happens to an unfinished resize.
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

// slowCall is the duration from which an unanswered call is reported.
const slowCall = 2 * time.Second

// waits reports calls that the runtime or a CSI driver has not answered for long. The pod's worker
// blocks on calls of the runtime.
func (s coming) waits() (lines []string) {
	for _, w := range s.lastingWaits() {
		lines = append(lines, s.waitText(w))
	}
	return lines
}

// pluginsWanted names the device plugins that containers of the pod wait for. A plugin's
// registration starts the containers at once, regardless of timers.
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

func (s explainer) dueText(t time.Time) string {
	if d := t.Sub(s.now); d > 0 {
		return fmt.Sprintf("at %s, in %s", s.at(t), roundUp(d))
	}
	return "due now"
}

// The worker's delay before it retries a failed pass.
const retryLeast, retryMost = 10 * time.Second, 15 * time.Second

// nextRetry reports when a failed pass is retried, if that is the worker's last decision.
func (s coming) nextRetry() (string, bool) {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "event" || e.Component == "status" { // they report the decision
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
