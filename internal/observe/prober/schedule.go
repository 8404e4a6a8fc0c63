package prober

import (
	"container/heap"
	"container/list"
	"context"
	"fmt"
	"time"

	"berth/internal/record/journal"
	"berth/internal/runtime/action"
)

const (
	// maxAttempts is the number of concurrent attempts as long as none of them is slow.
	maxAttempts = 64
	// maxQueued is how long an overdue probe waits before it exceeds maxAttempts.
	maxQueued = 100 * time.Millisecond
	// maxAttemptsPerPod is the maximum number of concurrent attempts of one pod; others wait
	// without a time limit.
	maxAttemptsPerPod = 8

	// lateness is the delay after its deadline from which an attempt counts as late: the shortest
	// period.
	lateness = time.Second

	notInHeap = -1
)

// deadlines is a heap of probes, earliest deadline first.
type deadlines []*probe

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *deadlines) Push(x any) {
	p := x.(*probe)
	p.index = len(*d)
	*d = append(*d, p)
}

func (d *deadlines) Pop() any {
	last := len(*d) - 1
	p := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	p.index = notInHeap
	return p
}

type attempt struct {
	probe  *probe
	target action.Target
	began  time.Time
	note   *journal.Entry // journal entry to record, or nil
	ctx    context.Context
	cancel context.CancelFunc
}

// schedule holds the deadlines, queue and running attempts. The zero value is empty.
type schedule struct {
	deadlines deadlines
	waiting   list.List // overdue probes of pods below their limit, in the order in which they start
	attempts  int       // running, including cancelled ones
	until     time.Time // when the loop wakes by itself; zero: only when woken
	rounds    int       // number of iterations of the loop
}

func (s *schedule) set(p *probe, due time.Time) {
	p.due = due
	if p.index != notInHeap {
		heap.Fix(&s.deadlines, p.index)
		return
	}
	heap.Push(&s.deadlines, p)
}

// remove removes the probe from the schedule. A running attempt is cancelled, and its result
// ignored.
func (s *schedule) remove(p *probe) {
	if p.index != notInHeap {
		heap.Remove(&s.deadlines, p.index)
	}
	if p.queue != nil {
		p.dequeue()
		s.promote(p.container.pod) // it may have held the pod's position in the queue
	}
	if p.current != nil {
		p.current.cancel()
		p.current = nil
	}
}

// wait appends the probe to a queue.
func (p *probe) wait(q *list.List, since time.Time) {
	p.queue, p.element, p.since = q, q.PushBack(p), since
}

// dequeue removes the probe from its queue, if any.
func (p *probe) dequeue() {
	if p.queue != nil {
		p.queue.Remove(p.element)
		p.queue, p.element = nil, nil
	}
}

// takeDue returns the attempts that start now, with contexts derived from ctx.
func (s *schedule) takeDue(ctx context.Context, now time.Time) (out []*attempt) {
	for len(s.deadlines) > 0 && !s.deadlines[0].due.After(now) {
		p := heap.Pop(&s.deadlines).(*probe)
		p.wait(&s.waiting, now)
	}
	for s.waiting.Len() > 0 {
		p := s.waiting.Front().Value.(*probe)
		owner := p.container.pod
		if owner.attempts >= maxAttemptsPerPod {
			p.dequeue()
			p.wait(&owner.waiting, now)
			p.podLimited = true
			continue
		}
		if s.attempts >= maxAttempts && now.Sub(p.since) < maxQueued {
			break
		}
		p.dequeue()
		s.attempts++
		owner.attempts++
		out = append(out, s.begin(ctx, p, now))
	}
	return out
}

func (s *schedule) begin(ctx context.Context, p *probe, now time.Time) *attempt {
	c := p.container
	a := &attempt{probe: p, target: action.Target{ID: c.id, Container: c.spec, PodIP: c.pod.ip}, began: now}
	a.ctx, a.cancel = context.WithCancel(ctx)
	p.current, p.began = a, now
	behind := now.Sub(p.due)
	if behind >= lateness {
		p.counts.late++
	}
	if late := behind >= lateness; late != p.late {
		p.late = late
		e := p.entry(p.kind.String() + " probe is in time again")
		if late {
			e.Decision = p.kind.String() + " probe runs late"
			e.Why = "the agent did not come to it"
			if p.podLimited {
				e.Why = fmt.Sprintf("its pod had %d attempts under way, as many as it may have", maxAttemptsPerPod)
			}
		}
		e.Took = behind
		a.note = &e
	}
	p.podLimited = false
	return a
}

// finish removes an attempt from the counts.
func (s *schedule) finish(a *attempt) {
	a.cancel()
	owner := a.probe.container.pod
	s.attempts--
	owner.attempts--
	s.promote(owner)
}

// promote moves the longest-waiting probe of the pod to the node's queue.
func (s *schedule) promote(owner *podProbes) {
	if first := owner.waiting.Front(); first != nil {
		p := first.Value.(*probe)
		since := p.since
		p.dequeue()
		p.wait(&s.waiting, since)
	}
}

// next returns when takeDue has work; zero: only after a change.
func (s *schedule) next() time.Time {
	var at time.Time
	if len(s.deadlines) > 0 {
		at = s.deadlines[0].due
	}
	if first := s.waiting.Front(); first != nil {
		startAt := first.Value.(*probe).since
		if s.attempts >= maxAttempts {
			startAt = startAt.Add(maxQueued)
		}
		if at.IsZero() || startAt.Before(at) {
			at = startAt
		}
	}
	return at
}

// unlock unlocks mu after a change. It wakes the loop if that would now sleep too long.
func (m *Manager) unlock() {
	next := m.schedule.next()
	early := !next.IsZero() && (m.schedule.until.IsZero() || next.Before(m.schedule.until))
	if early {
		m.schedule.until = next
	}
	m.mu.Unlock()
	if early {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}
