package eviction

import (
	"context"
	"fmt"
	"maps"
	"time"

	"berth/internal/pod"
)

// patience is how long a pod that does not end spares others that use less than it does. It may
// never end, and then they must do.
const patience = 5 * time.Minute

// nextDue returns the threshold for which something is done first, nil if there is none. While a
// pod has the grace of a soft threshold, that is a hard one.
func nextDue(due []met, granted *kill) *met {
	for i := range due {
		if granted == nil || due[i].isHard() {
			return &due[i]
		}
	}
	return nil
}

// choose returns the place of the pod of a ranking that is to end, or why there is none. While a
// pod still runs that was evicted already, none goes that uses less than that still does: its end
// would free less than what is waited for.
//
// Differs from the kubelet: where the machine is too slow to end a pod in time, there the next in
// the ranking goes, and the next, however little they use.
func choose(m *met, pods []candidate) (victim int, err error) {
	var held *candidate
	others := 0
	for i := range pods {
		switch c := &pods[i]; {
		case !c.ending:
			others++
		case held == nil || c.used > held.used:
			held = c
		}
	}
	for i := range pods {
		c := &pods[i]
		if !c.critical && !c.ending && (held == nil || c.used >= held.used) {
			return i, nil
		}
	}
	if held != nil {
		return -1, fmt.Errorf("%s is met, and pod %s, which uses %s, is ending: it is waited for, as no other one uses as much",
			m.Threshold.String(), pod.Describe(held.pod), quantity(m.Signal.resource(), held.used))
	}
	return -1, fmt.Errorf("%s is met, and of %d pods that run all are critical", m.Threshold.String(), others)
}

// end is closed when no container of the pod runs any more; it is nil if there is none.
func (k *kill) end() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.done
}

// isGranted reports whether the pod has the grace of a soft threshold of this loop.
func (l *loop) isGranted(uid pod.UID) bool { return l.granted != nil && l.granted.pod.UID == uid }

// closeGrant sees to the pod that a soft threshold ended, if it has ended or its time is over.
func (l *loop) closeGrant(ctx context.Context) {
	k := l.granted
	if k == nil || !k.ended() && time.Now().Before(k.until) {
		return
	}
	l.granted = nil
	if !k.ended() {
		l.exceeded(k)
	}
	l.finish(ctx, k)
}

// finish waits until what a pod held is free that was to end.
func (l *loop) finish(ctx context.Context, k *kill) {
	l.unended = !k.ended()
	if l.unended {
		l.late = k
	}
	l.awaitLeaving(ctx)
	_, _ = l.awaitFreed(ctx, k.signal) // it is read again
}

// mayEvict reports whether containers of the pod may run, and it is not leaving already.
func (m *Manager) mayEvict(uid pod.UID) bool {
	l, ok := m.Lifecycle(uid)
	return ok && !m.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// stillRuns reports whether the pod leaves, and containers of it may run.
func (m *Manager) stillRuns(uid pod.UID) bool {
	l, ok := m.Lifecycle(uid)
	return ok && m.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// isAsRanked reports whether the pod is as it was when candidates returned it.
func (m *Manager) isAsRanked(c *candidate) bool {
	if c.leaving {
		return m.stillRuns(c.pod.UID)
	}
	return m.mayEvict(c.pod.UID)
}

// candidates returns the pods that may be evicted for the threshold, and those that were and still
// run. A hard threshold takes from those the rest of their grace, once.
func (l *loop) candidates(m *met) []candidate {
	var out []candidate
	hurried := l.hurriedStill()
	for _, p := range l.Pods() {
		c := newCandidate(l.Allocated(p), m.Signal.resource())
		c.wanted, c.critical, c.leaving = p, l.IsCritical(p), l.stillRuns(p.UID)
		switch {
		case c.leaving:
			c.ending = !m.isHard() || hurried[p.UID]
			if since, ok := l.leaving[p.UID]; ok && c.ending && time.Since(since) >= patience {
				continue
			}
		case !l.mayEvict(p.UID):
			continue
		}
		out = append(out, c)
	}
	return out
}

// setHurried notes that the pod has no more than the grace of a hard threshold.
func (m *Manager) setHurried(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hurried[uid] = true
}

// hurriedStill returns those of which containers may run, and forgets the others.
func (m *Manager) hurriedStill() map[pod.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.hurried, func(uid pod.UID, _ bool) bool { return !m.stillRuns(uid) })
	return maps.Clone(m.hurried)
}
