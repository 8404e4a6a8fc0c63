package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/sync/quarantine"
)

// explainer holds the input of an explanation: the newest pod of a name, its timeline and the time.
type explainer struct {
	e        server.Explanation
	pod      *v1.Pod          // nil if the node has no such pod
	timeline journal.Timeline // of the pod, or of the last pod with its name
	now      time.Time
	zone     *time.Location
}

func newExplainer(e server.Explanation, now time.Time, zone *time.Location) explainer {
	s := explainer{e: e, now: now, zone: zone}
	for _, p := range e.Pods { // of two pods with the name, prefer the one that is not terminating
		if s.pod == nil || p.DeletionTimestamp == nil {
			s.pod = p
		}
	}
	for i := range e.Stories {
		if st := e.Stories[i]; s.pod == nil || st.Subject.UID == s.pod.UID || s.timeline.Subject.Name == "" {
			s.timeline = st
		}
	}
	return s
}

// headline describes the pod's state and its cause in one or two sentences.
func (s explainer) headline() string {
	p := s.pod
	switch {
	case s.timeline.Subject.Namespace == "":
		return s.aboutManifest()
	case p == nil:
		return s.aboutGone()
	case s.isUnbound():
		return unbound{s}.aboutUnbound()
	case s.e.Quarantined[p.UID] != "":
		return s.says("is set aside%s. Its containers go on, and nothing is done for it until its spec changes or `berth release %s/%s` lets go of it. The crash: %s",
			s.aboutCrashes(), p.Namespace, p.Name, oneLine(s.e.Quarantined[p.UID]))
	case p.Status.Phase == v1.PodSucceeded:
		return s.says("has completed: all its containers ended with code 0.%s", ending{s}.aboutFinalizers())
	case p.Status.Phase == v1.PodFailed && ending{s}.aboutRunning() == "":
		return s.aboutFailed() + ending{s}.aboutFinalizers()
	case p.DeletionTimestamp != nil || p.Status.Phase == v1.PodFailed || ending{s}.isEnding():
		return s.says("is ending%s.%s%s%s%s", s.why("end the pod"), ending{s}.failure(), ending{s}.aboutEnd(), ending{s}.aboutRunning(), ending{s}.aboutVolumes()+ending{s}.aboutFinalizers())
	}
	if text := (ending{s}).aboutStopping(); text != "" {
		return text
	}
	if text := s.aboutContainers(); text != "" {
		return sentence(text) + s.aboutNode()
	}
	if !lifecycle.IsTrue(p, v1.PodReady) {
		return sentence(unready{s}.aboutUnready()) + s.aboutRestarts() + s.aboutNode()
	}
	return s.says("is ready%s.", s.sinceCondition(v1.PodReady)) + unready{s}.aboutFailing() + s.aboutRestarts() + s.aboutResize() + s.aboutBeside() + s.aboutNode()
}

// aboutCrashes reports since when the pod is in quarantine, after how many crashes, and the rule.
func (s explainer) aboutCrashes() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if crashes, ok := strings.CutSuffix(e.Why, quarantine.Rule); ok {
			return fmt.Sprintf("%s: %s", s.sinceTime(e.Time), strings.TrimSuffix(crashes, ". "))
		}
	}
	return ": the agent crashed again and again with it in hand"
}

func (s explainer) says(format string, args ...any) string {
	about := s.timeline.Subject
	if s.pod != nil {
		about.Namespace, about.Name = s.pod.Namespace, s.pod.Name
	}
	return fmt.Sprintf("Pod %s/%s ", about.Namespace, about.Name) + fmt.Sprintf(format, args...)
}

func (s explainer) aboutManifest() string {
	name := "Manifest " + s.timeline.Subject.Name
	var texts []string
	severe := false
	for _, p := range s.e.Problems {
		texts = append(texts, oneLine(p.Message))
		severe = severe || p.Severity == "error"
	}
	switch {
	case severe:
		return name + " is refused: " + strings.Join(texts, "; ")
	case len(texts) > 0:
		return name + " is accepted, with a warning: " + strings.Join(texts, "; ")
	}
	return name + " has no problem now."
}

func (s explainer) aboutGone() string {
	if len(s.timeline.Entries) == 0 {
		return s.says("is gone.")
	}
	last := s.timeline.Entries[len(s.timeline.Entries)-1]
	if last.Decision == "manifest refused" {
		return s.says("does not exist: its manifest is refused: %s", oneLine(last.Error))
	}
	return s.says("is gone since %s%s.", s.at(last.Time), s.why("end the pod"))
}

func (s explainer) aboutFailed() string {
	p := s.pod
	if refusal, ok := strings.CutPrefix(p.Status.Message, "Pod was rejected: "); ok {
		return s.says("was refused by this node (%s): %s.", p.Status.Reason, s.aboutRefusal(refusal))
	}
	if failure := (ending{s}).failure(); failure != "" {
		return s.says("has failed:%s", failure)
	}
	for _, cs := range statusesOf(p) {
		if t := cs.State.Terminated; t != nil && t.ExitCode != 0 {
			return s.says("has failed: container %q %s%s%s, and is not restarted: %s.", cs.Name,
				ending{s}.endOf(cs.Name, ofStatus(t)), s.agoOf(t.FinishedAt.Time), lastWords(t), ending{s}.whyNotRestarted(cs.Name))
		}
	}
	return s.says("has failed.")
}

// aboutContainers describes the first container that prevents the pod from running, or "".
func (s explainer) aboutContainers() string {
	p := s.pod
	for i, cs := range p.Status.InitContainerStatuses {
		switch {
		case cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0, lifecycle.HasSidecar(p, cs.Name) && cs.Started != nil && *cs.Started:
			continue
		case cs.State.Running != nil && lifecycle.HasSidecar(p, cs.Name):
			return s.says("is initializing: sidecar %q has not passed its startup probe yet%s.%s", cs.Name, unready{s}.lastProbe(cs.Name, "startup"), unready{s}.tally(cs.Name, "startup"))
		case cs.State.Running != nil:
			return s.says("is initializing: init container %q runs%s, number %d of %d.%s", cs.Name, s.sinceTime(cs.State.Running.StartedAt.Time), i+1, len(p.Spec.InitContainers), s.aboutPulls())
		}
		return s.aboutContainer(cs)
	}
	for _, cs := range p.Status.ContainerStatuses {
		if cs.State.Running == nil {
			if text := s.aboutContainer(cs); text != "" {
				return text
			}
		}
	}
	if len(p.Status.ContainerStatuses) == 0 {
		return s.aboutStarting()
	}
	return ""
}

// aboutContainer explains why a container does not run.
func (s explainer) aboutContainer(cs v1.ContainerStatus) string {
	if t := cs.State.Terminated; t != nil {
		if t.ExitCode == 0 && lifecycle.IsTrue(s.pod, v1.PodReady) {
			return ""
		}
		return s.says("is not ready: container %q %s%s.", cs.Name, ending{s}.endOf(cs.Name, ofStatus(t)), s.agoOf(t.FinishedAt.Time))
	}
	w := cs.State.Waiting
	if w == nil {
		return s.aboutStarting()
	}
	switch w.Reason {
	case "", lifecycle.ContainerCreating, lifecycle.PodInitializing:
		return s.aboutStarting()
	case lifecycle.CrashLoopBackOff:
		text := fmt.Sprintf("is waiting: container %q is in a crash loop, with %s so far", cs.Name, count(int(cs.RestartCount), "restart"))
		if end, ok := s.lastEnd(cs); ok {
			text += fmt.Sprintf(". It %s%s%s%s", ending{s}.endOf(cs.Name, end), s.agoOf(end.Finished), ending{s}.killedFor(end), ending{s}.ruleFor(cs.Name, end))
		}
		return s.says("%s.", text)
	case lifecycle.ErrImagePull, lifecycle.ImagePullBackOff, lifecycle.ErrImageNeverPull, lifecycle.InvalidImageName, lifecycle.ImageInspectError:
		return s.aboutImage(cs.Name, w)
	}
	return s.says("is waiting: container %q cannot be started (%s): %s", cs.Name, w.Reason, oneLine(w.Message)) + ending{s}.aboutRoot(cs.Name, w.Message)
}

// aboutRoot reports the user of a container that was rejected by runAsNonRoot.
func (s ending) aboutRoot(container, message string) string {
	if !strings.Contains(message, "non-root") && !strings.Contains(message, "runAsNonRoot") {
		return ""
	}
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "runtime" && e.Decision == "refuse to run as root" && e.Container == container {
			return ": " + oneLine(e.Why)
		}
	}
	return ""
}

// notYet describes start steps that are not complete.
var notYet = map[string]string{
	journal.Admitted.String(): "it has not been admitted yet",
	journal.Cgroup.String():   "its cgroup is not made yet",
	journal.Volumes.String():  "its volumes are not mounted yet",
	journal.Sandbox.String():  "its sandbox does not run yet",
	journal.Image.String():    "its images are not there yet",
}

// aboutStarting reports the current step of the start.
func (s explainer) aboutStarting() string {
	began, last := s.timeline.Seen, s.timeline.Seen
	for _, m := range s.timeline.Milestones {
		if m.Step == journal.Bound {
			began = m.Time
		}
		if m.Time.After(last) {
			last = m.Time
		}
	}
	waits := "its containers are being started"
	if (claims{s}).failsNow() {
		waits = "its resource claims are not prepared yet"
	} else if spans := (waterfall{s}).spans(); len(spans) > 0 && spans[len(spans)-1].open {
		waits = cmp.Or(notYet[spans[len(spans)-1].step], waits)
	}
	text := fmt.Sprintf("is starting%s: %s.", s.sinceTime(began), waits) + s.aboutPulls()
	for i := len(s.timeline.Entries) - 1; i >= 0; i-- {
		e := &s.timeline.Entries[i]
		switch {
		case e.Time.Before(s.underWay(e, last)):
		case e.Error != "" && e.Component != "event":
			failure := plainError(e.Error)
			return s.says("%s The last try failed%s: %s%s", text, s.agoOf(e.Time), sentence(failure), sources{s}.aboutVolumeSources(failure)+claims{s}.rule())
		case strings.HasPrefix(e.Decision, "wait for the postStart hook"):
			return s.says("%s%s", text, hooks{s}.aboutHook())
		case strings.HasPrefix(e.Decision, "wait for "):
			return s.says("%s It has to %s%s.%s", text, oneLine(e.Decision), s.waitedFor(e), ending{s}.failedBefore(s.timeline.Entries[:i], last))
		}
	}
	return s.says("%s", text)
}

// underWay returns when the unfinished step of an entry began. last is the time of the last
// finished step. Volumes are set up in parallel with sandbox and images, which may finish between
// their tries.
func (s explainer) underWay(e *journal.Entry, last time.Time) time.Time {
	setUp := func(m journal.Milestone) bool { return m.Step == journal.Volumes }
	if e.Component == "volume" && !slices.ContainsFunc(s.timeline.Milestones, setUp) {
		return s.timeline.Seen
	}
	return last
}

// failedBefore describes the failure of the previous try of the current step. last is the time of
// the last finished step.
func (s ending) failedBefore(entries []journal.Entry, last time.Time) string {
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		if (e.Component == "worker" || e.Component == "volume") && e.Error != "" && !e.Time.Before(s.underWay(e, last)) {
			return fmt.Sprintf(" The try before failed%s: %s.", s.agoOf(e.Time), strings.TrimSuffix(plainError(e.Error), "."))
		}
	}
	return ""
}

// aboutPulls reports the progress of the image pulls for the pod.
func (s explainer) aboutPulls() string {
	if s.pod == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range server.PullsOf(s.e.Pulls, s.pod.UID) {
		b.WriteString(" " + pullText(p, s.now))
	}
	return b.String()
}

// killedFor returns why the agent killed a container, if it did: a Killing event precedes the exit.
func (s ending) killedFor(end journal.End) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "event" && e.Decision == "Killing" && e.Container == end.Container && !e.Time.After(end.Finished) && !e.Time.Before(end.Started) {
			return ", killed by the agent" + cmp.Or(s.sandboxReplaced(e.Time), ": "+oneLine(e.Why)+s.ledTo(end)+s.askedForAll(e))
		}
	}
	return ""
}

// askedForAll names the container that triggered a restart of all containers, for which one was
// killed.
func (s ending) askedForAll(killed journal.Entry) string {
	if !strings.Contains(killed.Why, "restarted with all containers") {
		return ""
	}
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "runtime" && strings.HasPrefix(e.Decision, "restart all containers") && !e.Time.After(killed.Time) {
			why, _, _ := strings.Cut(e.Why, " [")
			return fmt.Sprintf(" (%s)", oneLine(why))
		}
	}
	return ""
}

func (s explainer) aboutRestarts() string {
	var b strings.Builder
	for _, cs := range statusesOf(s.pod) {
		if cs.RestartCount == 0 || cs.State.Running == nil {
			continue
		}
		fmt.Fprintf(&b, " Container %q has been restarted %s", cs.Name, times(int(cs.RestartCount)))
		if end, ok := s.lastEnd(cs); ok {
			fmt.Fprintf(&b, "; it last %s%s%s%s", ending{s}.endOf(cs.Name, end), s.agoOf(end.Finished), ending{s}.killedFor(end), ending{s}.ruleFor(cs.Name, end))
		}
		b.WriteString(".")
	}
	return b.String()
}

// lastEnd returns the container's last exit from the journal, else from its status.
func (s explainer) lastEnd(cs v1.ContainerStatus) (journal.End, bool) {
	for _, e := range slices.Backward(s.timeline.Ends) {
		if e.Container == cs.Name {
			return e, true
		}
	}
	for _, t := range []*v1.ContainerStateTerminated{cs.State.Terminated, cs.LastTerminationState.Terminated} {
		if t != nil {
			return ofStatus(t), true
		}
	}
	return journal.End{}, false
}

func ofStatus(t *v1.ContainerStateTerminated) journal.End {
	return journal.End{ExitCode: int(t.ExitCode), Reason: t.Reason, Message: t.Message, Started: t.StartedAt.Time, Finished: t.FinishedAt.Time}
}

// why returns the inputs of the newest entry with the decision.
func (s explainer) why(decision string) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Decision == decision && e.Why != "" {
			return ": " + oneLine(e.Why)
		}
	}
	return ""
}
