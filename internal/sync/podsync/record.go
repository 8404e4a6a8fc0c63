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

// How much of an exited container's log is recorded.
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

// reach records a completed step of the pod's start.
func (p *pass) reach(step journal.Step) { p.syncer.Journal.Reach(p.subject(), step, "") }

// recordAdmitted records the admission, and clears the expected actions.
func (p *pass) recordAdmitted() {
	p.reach(journal.Admitted)
	p.expect()
}

func (p *pass) recordRemoved() {
	p.syncer.Journal.Record(journal.Entry{
		Subject: p.subject(), Component: "worker", Decision: "pod removed: containers, sandboxes, logs and folders are gone",
	})
}

// recordObserved records the observed state: when the first sandbox and containers were created, by
// the runtime's clock (so a start that an earlier agent began counts too), and container exits.
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

// recordEnd records a container exit, once.
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

// expect records the actions that will happen to the pod without a further event.
func (p *pass) expect(next ...journal.Next) { p.syncer.Journal.Expect(p.subject(), next...) }

// expectKill records when the containers that still run are killed.
func (p *pass) expectKill() {
	p.expect(journal.Next{
		Time: time.Now().Add(p.Grace), What: "what still runs of the pod is killed", Rule: fmt.Sprintf("its grace period is %s", p.Grace),
	})
}

// expectRetries records when back-offs end and when the pod's deadline is. At this point,
// result.RetryAt is the deadline.
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

// nextStart returns the next attempt to start a container, and the rule that sets its time.
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
		law = node // an invalid policy is ignored
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

// removed returns the journal's record of a container that was removed to restart with all others
// of its pod: its attempt and its exit time. It is nil if there is no record.
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
