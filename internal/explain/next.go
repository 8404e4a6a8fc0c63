package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// next reports what happens without a further event, and when. text is the state of the pod and its
// cause.
func next(f *facts, text string) []string {
	if isUnbound(f) {
		return nextUnbound(f)
	}
	lines := nextClaims(f)
	if len(lines) == 0 {
		lines = slices.Concat(nextAnswers(f), nextPlugins(f), nextObjects(f, text), nextAdmission(f), nextTimers(f), nextRestartAll(f), nextPass(f))
	}
	if len(lines) == 0 && f.pod != nil && f.timeline.Subject.Namespace != "" {
		i := slices.IndexFunc(untimed, func(r untimedRow) bool { return r.is(f) })
		lines = untimed[i].lines(f)
	}
	return append(lines, nextAPI(f)...)
}

type untimedRow struct {
	is    func(*facts) bool
	lines func(*facts) []string
}

// untimed is what the pod waits for if no timer is set: the first row that holds.
var untimed = []untimedRow{
	{isQuarantined, line("nothing, until its spec changes or it is released")},
	{func(f *facts) bool { return isTerminal(f) && finalizers(f) != "" }, line("as soon as its finalizers are removed, which is not this node's work: the API server lets go of it then")},
	{func(f *facts) bool { return isTerminal(f) && pod.IsStatic(f.pod) }, line("nothing: a pod that has ended stays as it is until its manifest is changed or removed")},
	{isTerminal, line("nothing: a pod that has ended stays as it is until it is deleted")},
	{isReady, func(f *facts) []string { return append(nextResize(f), nextFailing(f)...) }},
	{func(*facts) bool { return true }, nextReady},
}

func line(text string) func(*facts) []string {
	return func(*facts) []string { return []string{text} }
}

func nextReady(f *facts) []string {
	for _, cs := range slices.Concat(f.pod.Status.InitContainerStatuses, f.pod.Status.ContainerStatuses) {
		c := f.container(cs.Name)
		switch {
		case cs.State.Running == nil || cs.Ready:
		case startupPending(f, &cs):
			return []string{nextProbe(f, c.Name, "startup")}
		case c.ReadinessProbe != nil:
			return []string{nextProbe(f, c.Name, "readiness")}
		case slices.ContainsFunc(f.pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == cs.Name }):
			return []string{fmt.Sprintf("as soon as init container %q ends", c.Name)}
		}
	}
	if gate := openGate(f); gate != "" {
		return []string{fmt.Sprintf("as soon as the condition %q is true: the pod is ready then", gate)}
	}
	if len(f.Pulls) > 0 {
		return []string{"as soon as the image is here: the container is created then"}
	}
	if hook := afterPostStart(f); hook != "" {
		return []string{hook}
	}
	if e := f.lastSince(isDecision, from("image", "use present image *")); e != nil && e.Container != "" {
		return []string{fmt.Sprintf("as soon as the container runtime has started container %q, which it is asked to do now", e.Container)}
	}
	return []string{"nothing is timed: the agent acts as soon as something of the pod changes"}
}

// isDecision matches entries that are no reports of earlier ones.
func isDecision(e *journal.Entry) bool { return e.Component != "event" && e.Component != "status" }

var resizes = []struct {
	condition v1.PodConditionType
	reason    string
	text      string
}{
	{v1.PodResizeInProgress, v1.PodReasonError, "within 10 s: the resize is tried again, as every 10 s until it can be done or is taken back"},
	{v1.PodResizePending, v1.PodReasonInfeasible, "nothing: this node never does such a resize; it can be taken back, or the pod created again with these resources"},
	{v1.PodResizePending, v1.PodReasonDeferred, "as soon as other pods end or take less: the resize is tried again then"},
}

func nextResize(f *facts) []string {
	for _, c := range f.pod.Status.Conditions {
		for _, r := range resizes {
			if c.Status != v1.ConditionTrue || c.Type != r.condition || c.Reason != r.reason {
				continue
			}
			if s, ok := parseShortage(c.Message); ok && s.Requested > s.Allocatable && r.reason == v1.PodReasonDeferred {
				return []string{"nothing: this node never has as much; the resize can be taken back"}
			}
			return []string{r.text}
		}
	}
	return nil
}

// slowCall is the duration from which an unanswered call is reported.
const slowCall = 2 * time.Second

func slowCalls(f *facts) []Wait {
	return slices.DeleteFunc(slices.Clone(f.Waits), func(w Wait) bool {
		return f.pod == nil || w.Pod != f.pod.UID || f.now.Sub(w.Since) < slowCall
	})
}

func waitsForVolume(f *facts) bool {
	return slices.ContainsFunc(slowCalls(f), func(w Wait) bool { return w.Driver != "" || w.From != "" })
}

// callNames describes CRI calls whose names do not explain themselves.
var callNames = map[string]string{
	"RunPodSandbox":  "RunPodSandbox, in which the network plugin makes the pod's network",
	"StopPodSandbox": "StopPodSandbox, in which the network plugin takes the pod's network down",
	"Wait":           "Wait, for the end of a container that was sent SIGTERM",
}

// nextAnswers describes the slow calls: since when they wait, and what follows. The pod's worker
// blocks on calls of the runtime.
func nextAnswers(f *facts) (lines []string) {
	for _, w := range slowCalls(f) {
		who, call, then := "the container runtime", cmp.Or(callNames[w.Call], w.Call), "until then nothing else is done for the pod"
		if w.Driver != "" {
			who, call, then = "the CSI driver "+w.Driver, w.Call, "the call is given up then, and made again later"
		}
		switch {
		case w.From != "":
			who, then = w.From, "the try is given up then, and the next one follows 10 to 15 s later"
			call = fmt.Sprintf("%s for volume %q", OneLine(w.Call), w.Volume)
		case w.Container != "":
			call += fmt.Sprintf(" of container %q", w.Container)
		case w.Volume != "":
			call += fmt.Sprintf(" for its volume %s", Truncate(OneLine(w.Volume), 40))
		}
		lines = append(lines, fmt.Sprintf("when %s answers %s, for which it has taken %s so far, or at %s, in %s: %s", who, call,
			RoundDuration(f.now.Sub(w.Since).Truncate(time.Second)), f.at(w.Until), roundUp(w.Until.Sub(f.now)), then))
	}
	return lines
}

// nextPlugins names the device plugins that containers of the pod wait for. A plugin's registration
// starts the containers at once, regardless of timers.
func nextPlugins(f *facts) (lines []string) {
	if f.pod == nil {
		return nil
	}
	for _, cs := range slices.Concat(f.pod.Status.InitContainerStatuses, f.pod.Status.ContainerStatuses) {
		if cs.State.Waiting == nil {
			continue
		}
		_, rest, _ := strings.Cut(cs.State.Waiting.Message, "waiting for the device plugin of ")
		if resource, _, ok := strings.Cut(rest, " to register"); ok {
			lines = append(lines, fmt.Sprintf("as soon as the device plugin of %s registers: container %q is tried again", resource, cs.Name))
		}
	}
	return lines
}

// missing are objects and drivers that a pod waits for, as named in errors. The agent watches each.
var missing = []struct {
	error *regexp.Regexp
	text  string
}{
	{regexp.MustCompile(`configmap "([^"]+)" not found`), "as soon as the ConfigMap %q exists"},
	{regexp.MustCompile(`secret "([^"]+)" not found`), "as soon as the Secret %q exists"},
	{regexp.MustCompile(`couldn't find key \S+ in ConfigMap \S+/([^\s:]+)`), "as soon as the ConfigMap %q has the key"},
	{regexp.MustCompile(`configmap references non-existent config key: ([^\s:]+)`), "as soon as the ConfigMap has the key %q"},
	{regexp.MustCompile(`couldn't find key \S+ in Secret \S+/(\S+)`), "as soon as the Secret %q has the key"},
	{regexp.MustCompile(`persistentvolumeclaim "([^"]+)" not found`), "as soon as the PersistentVolumeClaim %q exists"},
	{regexp.MustCompile(`PVC \S+/([^\s:]+): PVC is not bound`), "as soon as the PersistentVolumeClaim %q is bound to a volume"},
	{regexp.MustCompile(`RuntimeClass "([^"]+)" not found`), "as soon as the RuntimeClass %q exists"},
	{regexp.MustCompile(`driver name (\S+) not found in the list of registered CSI drivers`), "as soon as the CSI driver %q registers"},
}

// nextObjects reports what wakes the pod's worker before any timer does.
func nextObjects(f *facts, text string) (lines []string) {
	if f.pod == nil || strings.Contains(text, " registry was asked ") { // only the next try notices it
		return nil
	}
	for _, row := range missing {
		if m := row.error.FindStringSubmatch(text); m != nil {
			lines = append(lines, fmt.Sprintf(row.text, m[1])+claimBoundBy(f, m[1]))
		}
	}
	return lines
}

// victim matches a preempted pod and its deadline.
var victim = regexp.MustCompile(`(\S+) \([A-Za-z]+, priority -?\d+\), which has \d+ s to end, until ([0-9T:-]+Z)`)

// nextAdmission reports what completes the wait that the worker or a volume recorded last.
func nextAdmission(f *facts) (lines []string) {
	if len(f.timeline.Entries) == 0 {
		return nil
	}
	last := f.timeline.Entries[len(f.timeline.Entries)-1].Decision
	switch {
	case last == waitForRoom:
		for _, m := range victim.FindAllStringSubmatch(f.why("end other pods to make room"), -1) {
			if until, err := time.Parse(time.RFC3339, m[2]); err == nil && until.After(f.now) {
				lines = append(lines, fmt.Sprintf("%s: pod %s is killed, if it has not ended before", f.due(until), m[1]))
			}
		}
		return append(lines, "as soon as the room is there: the pod is admitted then")
	case last == waitForName:
		lines = append(lines, "as soon as the pod of the same name has ended")
		for _, other := range f.Stories {
			for _, n := range other.Next {
				if other.Subject.UID != f.timeline.Subject.UID {
					lines = append(lines, fmt.Sprintf("%s: %s", f.due(n.Time), joinNonEmpty(": ", strings.Replace(n.What, "of the pod", "of that pod", 1), n.Rule)))
				}
			}
		}
	case waitsForVolume(f): // the call has a timeout
	case strings.HasPrefix(last, "wait for volume"):
		lines = append(lines, "as soon as "+strings.TrimPrefix(strings.Replace(last, " to be mounted", " is mounted", 1), "wait for ")+"; no limit is known for it")
	}
	return lines
}

func nextTimers(f *facts) (lines []string) {
	for _, n := range slices.SortedStableFunc(slices.Values(f.timeline.Next), func(a, b journal.Next) int { return a.Time.Compare(b.Time) }) {
		text := n.What
		if n.Container != "" {
			text = fmt.Sprintf("container %q: %s", n.Container, n.What)
		}
		lines = append(lines, fmt.Sprintf("%s: %s", f.due(n.Time), joinNonEmpty(": ", text, n.Rule)))
	}
	return lines
}

// nextRestartAll reports what follows after all containers that restart together have stopped.
func nextRestartAll(f *facts) []string {
	if f.pod == nil || f.pod.DeletionTimestamp != nil {
		return nil
	}
	if _, e := stopping(f); e == nil || !restartsAll(e) || f.last(restartAll.until(e.Time)) == nil {
		return nil
	}
	return []string{"as soon as all containers have stopped: they are removed, init containers too, and started from the first one on"}
}

// The worker's delay before it retries a failed pass.
const minRetry, maxRetry = 10 * time.Second, 15 * time.Second

func nextPass(f *facts) []string {
	e := f.last(isDecision)
	if e == nil || e.Component != "worker" || !strings.HasSuffix(e.Decision, "failed, to be tried again") || f.now.Sub(e.Time) > maxRetry {
		return nil
	}
	return []string{fmt.Sprintf("between %s and %s: the failed pass is tried again 10 to 15 s after it failed", f.at(e.Time.Add(minRetry)), f.at(e.Time.Add(maxRetry)))}
}

// nodeGrace is the default of the controller manager's --node-monitor-grace-period: a node whose
// lease is not renewed for this long becomes NotReady.
const nodeGrace = 50 * time.Second

func nextAPI(f *facts) (lines []string) {
	i := slices.IndexFunc(f.Node, func(c health.State) bool { return c.Code == health.APIServer })
	if i < 0 || f.pod == nil || isTerminal(f) {
		return nil
	}
	if since, ok := f.Unreported[f.pod.UID]; ok {
		lines = append(lines, fmt.Sprintf("as soon as the API server answers: the status of the pod is written, which it does not have since %s", f.at(since)))
	}
	if f.Node[i].Since.IsZero() {
		return lines
	}
	notReady := f.Node[i].Since.Add(nodeGrace)
	if d := notReady.Sub(f.now); d > 0 {
		lines = append(lines, fmt.Sprintf("by %s, in %s: the cluster takes this node for NotReady: by default when its lease was not renewed for %d s", f.at(notReady), roundUp(d), nodeGrace/time.Second))
	}
	tolerated, limited := unreachableToleration(f.pod)
	if !limited || f.pod.DeletionTimestamp != nil {
		return lines
	}
	deleted := notReady.Add(tolerated)
	if d := deleted.Sub(f.now); d > 0 {
		return append(lines, fmt.Sprintf("by %s, in %s: the cluster deletes the pod: it tolerates %s for %s", f.at(deleted), roundUp(d), v1.TaintNodeUnreachable, tolerated))
	}
	return append(lines, fmt.Sprintf("as soon as the API server answers: the pod ends, if the cluster has deleted it: it tolerates %s for %s", v1.TaintNodeUnreachable, tolerated))
}

// unreachableToleration returns how long the pod may stay on an unreachable node, and whether that
// time is limited.
func unreachableToleration(p *v1.Pod) (d time.Duration, limited bool) {
	if pod.IsStatic(p) {
		return 0, false
	}
	for _, t := range p.Spec.Tolerations {
		named := t.Key == v1.TaintNodeUnreachable || t.Key == "" && t.Operator == v1.TolerationOpExists
		if !named || t.Effect != "" && t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		if t.TolerationSeconds == nil {
			return 0, false
		}
		return time.Duration(*t.TolerationSeconds) * time.Second, true
	}
	return 0, true
}
