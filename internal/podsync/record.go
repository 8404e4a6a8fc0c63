package podsync

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/journal"
	"berth/internal/kuberuntime"
	"berth/internal/lifecycle"
	"berth/internal/logs"
	"berth/internal/pod"
)

// What is kept of the log of a container that ended.
const (
	tailLines = 10
	tailBytes = 2048
)

func subject(r Request) journal.Subject {
	s := journal.Subject{UID: r.UID}
	switch {
	case r.Pod != nil:
		s.Namespace, s.Name = r.Pod.Namespace, r.Pod.Name
	case r.Observed != nil:
		s.Namespace, s.Name = r.Observed.Namespace, r.Observed.Name
	}
	return s
}

// mark notes that a step of the pod's start is done.
func (s *Syncer) mark(r Request, step journal.Step) { s.Journal.Mark(subject(r), step, "") }

// recordObserved tells the journal what the runtime shows: when the first sandbox and the first containers were made, by the
// runtime's own clock and so also of a start that an earlier agent began, and how containers ended.
func (s *Syncer) recordObserved(ctx context.Context, r Request) {
	about := subject(r)
	markAt := func(step journal.Step, container string, at time.Time) {
		if !at.IsZero() {
			s.Journal.MarkAt(about, step, container, at)
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
		if cs.State == pod.StateExited && !s.Journal.HasEnd(about, cs.Name, string(cs.ID)) {
			s.Journal.Ended(about, journal.End{
				Container: cs.Name, ID: string(cs.ID), Restart: int(cs.Attempt), ExitCode: int(cs.ExitCode), Reason: cs.Reason, Message: cs.Message,
				Started: cs.StartedAt, Finished: cs.FinishedAt, Log: tailOf(ctx, cs.LogPath),
			})
		}
	}
}

// tailOf returns the end of a log; one that cannot be read has none.
func tailOf(ctx context.Context, path string) string {
	if path == "" {
		return ""
	}
	lines := int64(tailLines)
	var t tail
	if err := logs.Read(ctx, path, logs.Options{TailLines: &lines}, nil, logs.Streams{Out: &t, Err: &t}); err != nil {
		return ""
	}
	return string(t)
}

// tail is a writer that keeps the last tailBytes.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p[max(0, len(p)-tailBytes):]...)
	if n := len(*t) - tailBytes; n > 0 {
		*t = append((*t)[:0], (*t)[n:]...)
	}
	return len(p), nil
}

// expect tells the journal what will happen to the pod without any further event: the ends of back-offs, and of the pod's time.
func (s *Syncer) expect(r Request, done kuberuntime.Result, deadline time.Time) {
	var next []journal.Next
	for _, c := range [][]v1.Container{r.Pod.Spec.InitContainers, r.Pod.Spec.Containers} {
		for i := range c {
			if e, ok := done.StartErrors[c[i].Name]; ok && !e.BackOffUntil.IsZero() {
				next = append(next, s.nextStart(r, c[i].Name, e))
			}
		}
	}
	if !deadline.IsZero() {
		next = append(next, journal.Next{
			Time: deadline, What: "the pod is failed", Rule: fmt.Sprintf("activeDeadlineSeconds is %d", *r.Pod.Spec.ActiveDeadlineSeconds),
		})
	}
	s.Journal.Expect(subject(r), next...)
}

// nextStart is the next try to start a container, and the rule that says when.
func (s *Syncer) nextStart(r Request, container string, e lifecycle.StartError) journal.Next {
	n := journal.Next{Time: e.BackOffUntil, Container: container, What: "next try to start it", Rule: e.Reason}
	if e.Reason != lifecycle.CrashLoopBackOff {
		if e.Reason == lifecycle.ErrImagePull || e.Reason == lifecycle.ImagePullBackOff {
			n.What, n.Rule = "next try to pull its image", "image-pull back-off, which doubles up to 5m0s"
		}
		return n
	}
	law, err := lifecycle.PodBackOff(r.Pod, lifecycle.NodeBackOff(s.MaxRestartPeriod))
	if err != nil {
		law = lifecycle.NodeBackOff(s.MaxRestartPeriod) // what cannot be understood does not count
	}
	n.Rule = "crash-loop back-off"
	cs := r.Observed.FindContainer(container)
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

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
