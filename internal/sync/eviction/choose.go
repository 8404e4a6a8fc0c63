package eviction

import (
	"context"
	"fmt"
	"maps"
	"time"

	"berth/internal/pod"
)

// patience is how long a pod that does not terminate prevents evictions of pods with lower usage.
// It may never terminate, and then those must do.
const patience = 5 * time.Minute

// nextDue returns the threshold to relieve first, nil if there is none. While a pod has the grace
// period of a soft threshold, only hard ones count.
func nextDue(due []met, granted *kill) *met {
	for i := range due {
		if granted == nil || due[i].isHard() {
			return &due[i]
		}
	}
	return nil
}

// choose returns the index of the victim in the ranking, or why there is none. While an evicted pod
// still runs, no pod with lower usage is chosen: it would free less than the pending eviction.
//
// Differs from the kubelet: where the machine is too slow to terminate a pod in time, the kubelet
// evicts the next pods of the ranking, however little they use.
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

// end is closed when no container of the pod is running; it is nil without a pod.
func (k *kill) end() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.done
}

// isGranted reports whether the pod has the grace period of a soft threshold of this loop.
func (l *loop) isGranted(uid pod.UID) bool { return l.granted != nil && l.granted.pod.UID == uid }

// closeGrant finishes the eviction of a soft threshold if the pod has terminated or its time is
// over.
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

// finish waits until the resources of an evicted pod are freed.
func (l *loop) finish(ctx context.Context, k *kill) {
	l.unended = !k.ended()
	if l.unended {
		l.late = k
	}
	l.awaitLeaving(ctx)
	_, _ = l.awaitFreed(ctx, k.signal) // it is read again
}

// mayEvict reports whether containers of the pod may run, and it is not leaving yet.
func (m *Manager) mayEvict(uid pod.UID) bool {
	l, ok := m.Lifecycle(uid)
	return ok && !m.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// stillRuns reports whether the pod is leaving, and containers of it may run.
func (m *Manager) stillRuns(uid pod.UID) bool {
	l, ok := m.Lifecycle(uid)
	return ok && m.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// isAsRanked reports whether the pod's state is the same as in candidates.
func (m *Manager) isAsRanked(c *candidate) bool {
	if c.leaving {
		return m.stillRuns(c.pod.UID)
	}
	return m.mayEvict(c.pod.UID)
}

// candidates returns the pods that may be evicted for the threshold, and evicted pods that still
// run. A hard threshold cuts the grace period of the latter, once.
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

// setHurried marks the pod as limited to the grace period of a hard threshold.
func (m *Manager) setHurried(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hurried[uid] = true
}

// hurriedStill returns the marked pods whose containers may run, and drops the others.
func (m *Manager) hurriedStill() map[pod.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.hurried, func(uid pod.UID, _ bool) bool { return !m.stillRuns(uid) })
	return maps.Clone(m.hurried)
}
