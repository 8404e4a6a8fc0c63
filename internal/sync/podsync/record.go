package podsync

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/logs"
)

// How much of the log of a container that ended is recorded.
const (
	tailLines = 10
	tailBytes = 2048
)

func (p *pass) subject() journal.Subject {
	s := journal.Subject{UID: p.UID}
	switch {
	case p.Pod != nil:
		s.Namespace, s.Name = p.Pod.Namespace, p.Pod.Name
	case p.Observed != nil:
		s.Namespace, s.Name = p.Observed.Namespace, p.Observed.Name
	}
	return s
}

// reach notes that a step of the pod's start is done.
func (p *pass) reach(step journal.Step) { p.syncer.Journal.Reach(p.subject(), step, "") }

// recordAdmitted notes that the pod may run, and that nothing is expected of it yet.
func (p *pass) recordAdmitted() {
	p.reach(journal.Admitted)
	p.expect()
}

// recordRemoved notes that nothing of the pod is left.
func (p *pass) recordRemoved() {
	p.syncer.Journal.Record(journal.Entry{
		Subject: p.subject(), Component: "worker", Decision: "pod removed: containers, sandboxes, logs and folders are gone",
	})
}

// recordObserved records what the runtime shows: when the first sandbox and the first containers
// were made, by the runtime's own clock and so also of a start that an earlier agent began, and how
// containers ended.
func (p *pass) recordObserved(ctx context.Context) {
	about, j := p.subject(), p.syncer.Journal
	markAt := func(step journal.Step, container string, at time.Time) {
		if !at.IsZero() {
			j.ReachAt(about, step, container, at)
		}
	}
	for i := range p.Observed.Sandboxes {
		if sb := &p.Observed.Sandboxes[i]; sb.Attempt == 0 && sb.Ready {
			markAt(journal.Sandbox, "", sb.CreatedAt)
		}
	}
	for i := len(p.Observed.Containers) - 1; i >= 0; i-- { // oldest first
		cs := &p.Observed.Containers[i]
		if cs.Attempt == 0 {
			markAt(journal.Created, cs.Name, cs.CreatedAt)
			markAt(journal.Started, cs.Name, cs.StartedAt)
		}
		if cs.State == pod.StateExited {
			recordEnd(ctx, j, about, cs)
		}
	}
}

// recordEnd records how a container ended, once.
func recordEnd(ctx context.Context, j *journal.Journal, about journal.Subject, cs *pod.ContainerStatus) {
	if j.HasEnd(about, cs.Name, string(cs.ID)) {
		return
	}
	log, _ := logs.Tail(ctx, cs.LogPath, tailLines, tailBytes)
	j.Ended(about, journal.End{
		Container: cs.Name, ID: string(cs.ID), Restart: int(cs.Attempt), ExitCode: int(cs.ExitCode), Reason: cs.Reason, Message: cs.Message,
		Started: cs.StartedAt, Finished: cs.FinishedAt, Log: log,
	})
}

// expect says what will happen to the pod without any further event.
func (p *pass) expect(next ...journal.Next) { p.syncer.Journal.Expect(p.subject(), next...) }

// expectKill says when what still runs of the pod is killed.
func (p *pass) expectKill() {
	p.expect(journal.Next{
		Time: time.Now().Add(p.Grace), What: "what still runs of the pod is killed", Rule: fmt.Sprintf("its grace period is %s", p.Grace),
	})
}

// expectRetries says when back-offs end, and when the pod's time is over: until then result.RetryAt
// is that of its deadline.
func (p *pass) expectRetries() {
	var next []journal.Next
	for c := range pod.Containers(&p.Pod.Spec) {
		if e, ok := p.synced.StartErrors[c.Name]; ok && !e.BackOffUntil.IsZero() {
			next = append(next, p.nextStart(c.Name, e))
		}
	}
	if deadline := p.result.RetryAt; !deadline.IsZero() {
		next = append(next, journal.Next{
			Time: deadline, What: "the pod is failed", Rule: fmt.Sprintf("activeDeadlineSeconds is %d", *p.Pod.Spec.ActiveDeadlineSeconds),
		})
	}
	p.expect(next...)
}

// nextStart is the next try to start a container, and the rule that says when.
func (p *pass) nextStart(container string, e lifecycle.StartError) journal.Next {
	n := journal.Next{Time: e.BackOffUntil, Container: container, What: "next try to start it", Rule: e.Reason}
	if e.Reason != lifecycle.CrashLoopBackOff {
		if e.Reason == lifecycle.ErrImagePull || e.Reason == lifecycle.ImagePullBackOff {
			n.What, n.Rule = "next try to pull its image", "image-pull back-off, which doubles up to 5m0s"
		}
		return n
	}
	node := lifecycle.NodeBackOff(p.syncer.MaxRestartPeriod)
	law, err := lifecycle.PodBackOff(p.Pod, node)
	if err != nil {
		law = node // what cannot be understood does not count
	}
	n.Rule = "crash-loop back-off"
	cs := p.Observed.FindContainer(container)
	if cs == nil {
		cs = removed(p.syncer.Journal, p.UID, container)
	}
	if cs == nil {
		return n
	}
	ended := cs.FinishedAt
	if ended.IsZero() {
		ended = cs.CreatedAt
	}
	if delay := e.BackOffUntil.Sub(ended).Round(time.Second); delay > 0 && delay <= law.Maximum {
		n.Rule += " " + delay.String()
	}
	n.Rule += fmt.Sprintf(" of at most %s after %s", law.Maximum, plural(int(cs.Attempt), "restart"))
	return n
}

// removed is what the journal has of a container that was removed, to run anew with all others of
// its pod: which incarnation it was, and when it ended. It is nil if nothing is known.
func removed(j *journal.Journal, uid pod.UID, container string) *pod.ContainerStatus {
	story, _ := j.TimelineOf(uid)
	for _, e := range slices.Backward(story.Ends) {
		if e.Container == container {
			return &pod.ContainerStatus{Attempt: uint32(e.Restart), FinishedAt: e.Finished}
		}
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
