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

// recordObserved records the observed state: when the first sandbox and containers were created, by
// the runtime's clock (so a start that an earlier agent began counts too), and container exits.
func recordObserved(ctx context.Context, j *journal.Journal, r *Request) {
	about := subjectOf(r)
	markAt := func(step journal.Step, container string, at time.Time) {
		if !at.IsZero() {
			j.ReachAt(about, step, container, at)
		}
	}
	for i := range r.Observed.Sandboxes {
		if sb := &r.Observed.Sandboxes[i]; sb.Attempt == 0 && sb.Ready {
			markAt(journal.Sandbox, "", sb.CreatedAt)
		}
	}
	for i := len(r.Observed.Containers) - 1; i >= 0; i-- { // oldest first
		cs := &r.Observed.Containers[i]
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

// expectRetries records when back-offs end and when the pod's deadline is. At this point,
// result.RetryAt is the deadline.
func (p *syncPass) expectRetries() {
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
	p.syncer.Journal.Expect(subjectOf(&p.Request), next...)
}

// nextStart returns the next attempt to start a container, and the rule that sets its time.
func (p *syncPass) nextStart(container string, e lifecycle.StartError) journal.Next {
	n := journal.Next{Time: e.BackOffUntil, Container: container, What: "next try to start it", Rule: e.Reason}
	if e.Reason != lifecycle.CrashLoopBackOff {
		if e.Reason == lifecycle.ErrImagePull || e.Reason == lifecycle.ImagePullBackOff {
			n.What, n.Rule = "next try to pull its image", "image-pull back-off, which doubles up to 5m0s"
		}
		return n
	}
	node := lifecycle.NodeBackOff(p.syncer.MaxRestartPeriod)
	backOff, err := lifecycle.PodBackOff(p.Pod, node)
	if err != nil {
		backOff = node // an invalid policy is ignored
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
	if delay := e.BackOffUntil.Sub(ended).Round(time.Second); delay > 0 && delay <= backOff.Maximum {
		n.Rule += " " + delay.String()
	}
	n.Rule += fmt.Sprintf(" of at most %s after %s", backOff.Maximum, plural(int(cs.Attempt), "restart"))
	return n
}

// removed returns the journal's record of a container that was removed to restart with all others
// of its pod: its attempt and its exit time. It is nil if there is no record.
func removed(j *journal.Journal, uid pod.UID, container string) *pod.ContainerStatus {
	timeline, _ := j.TimelineOf(uid)
	for _, e := range slices.Backward(timeline.Ends) {
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
