package eviction

import (
	"context"
	"fmt"
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
		if granted == nil || due[i].threshold.isHard() {
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
			m.threshold.String(), pod.Describe(held.pod), quantity(m.threshold.Signal.resource(), held.used))
	}
	return -1, fmt.Errorf("%s is met, and of %d pods that run all are critical", m.threshold.String(), others)
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
		l.evictor.exceeded(k)
	}
	l.finish(ctx, k)
}

// finish waits until the resources of an evicted pod are freed.
func (l *loop) finish(ctx context.Context, k *kill) {
	l.lastHung = !k.ended()
	if l.lastHung {
		l.late = k
	}
	l.awaitLeaving(ctx)
	_, _ = l.awaitFreed(ctx, k.signal) // it is read again
}
