package eviction

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/host/pressure"
	"berth/internal/pod"
)

// loop relieves a part of the thresholds.
type loop struct {
	*Manager
	conditions []v1.NodeConditionType
	settle     time.Duration
	quiet      time.Duration
	kernel     Kernel // nil: no kernel notifications
	// measure reads the available amounts. reclaim frees resources without an eviction and reports
	// whether there was anything to try; nil: there is nothing to reclaim. rank returns the pods
	// that may be evicted, the first victim first.
	measure func(ctx context.Context) (observed, error)
	reclaim func(ctx context.Context, m *met) bool
	rank    func(ctx context.Context, m *met) ([]candidate, error)

	thresholds []Threshold // written only by the loop, under Manager.mu

	// Owned by the loop's goroutine:
	distances map[Signal]uint64 // to the nearest threshold, as of the last reading
	pause     time.Duration     // before the last reading
	reported  map[string]error  // last logged error by operation
	// rests is when the next attempt may follow after a failed one; unended: the last victim did
	// not terminate in time.
	rests   time.Time
	unended bool
	leaving map[pod.UID]time.Time // leaving pods, since when they are waited for
	// granted is the pod with the grace period of a soft threshold; late is one that did not
	// terminate in time. nil: there is none.
	granted, late *kill
	// free is how much memory can be used before caches are reclaimed: until then, the kernel's
	// usage shows it.
	free map[Signal]uint64
}

// run reads the available amounts, relieves due thresholds, and waits for the next reading.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var woken <-chan struct{}
	if l.kernel != nil {
		woken = l.kernel.Wake()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-woken:
		case <-l.granted.end():
		case <-l.late.end():
			l.late, l.rests = nil, time.Time{}
		case <-timer.C:
		}
		next := l.round(ctx)
		if ctx.Err() != nil {
			return
		}
		l.pause = next
		timer.Reset(next)
	}
}

// round is one reading with its consequences. It returns the maximum time until the next reading.
func (l *loop) round(ctx context.Context) time.Duration {
	l.closeGrant(ctx)
	read := time.Now()
	left, err := l.measure(ctx)
	l.report(ctx, cannotSee, err)
	if err != nil {
		return resting
	}
	v := l.judge(l, left)
	next := l.computePause(left, &v)
	if l.granted != nil {
		next = min(next, max(time.Until(l.granted.until), 0))
	}
	m := nextDue(v.due, l.granted)
	if m == nil {
		return next
	}
	if time.Now().Before(l.rests) {
		return min(next, time.Until(l.rests))
	}
	again, err := l.relieve(ctx, &v, m, read)
	l.report(ctx, cannotEvict, err)
	if err != nil {
		l.rests = time.Now().Add(resting)
	}
	if again {
		return 0 // choose the next victim from a new reading
	}
	return min(next, resting)
}

// Operations that can fail, for the log.
const (
	cannotSee   = "it cannot be seen whether the node runs short"
	cannotEvict = "the node runs short, and no pod is evicted"
)

// report logs an error of an operation unless it is the same as the last one; nil is success.
func (l *loop) report(ctx context.Context, what string, err error) {
	if last := l.reported[what]; err != nil && ctx.Err() == nil && (last == nil || last.Error() != err.Error()) {
		l.Log.Error(what, "error", err)
	}
	l.reported[what] = err
}

// computePause returns the time until the next reading, and arms the kernel notifications.
func (l *loop) computePause(left observed, v *verdict) time.Duration {
	next := longest
	distances := map[Signal]uint64{}
	var covered pressure.Coverage
	if l.kernel != nil {
		covered = l.kernel.Coverage()
	}
	machine, pods := int64(math.MaxInt64), int64(math.MaxInt64)
	for _, t := range l.thresholds {
		room, told := left[t.Signal]
		if !told {
			next = min(next, resting)
			continue
		}
		least := t.Value.of(room.Capacity)
		distance := room.Available - min(least, room.Available)
		if was, ok := distances[t.Signal]; !ok || distance < was && distance > 0 || was == 0 {
			distances[t.Signal] = distance
		}
	}
	for s, distance := range distances {
		switch wakeAt := int64(min(computeWakeAt(distance, l.free[s]), math.MaxInt64)); s {
		case MemoryAvailable:
			machine = wakeAt
		case AllocatableMemoryAvailable:
			pods = wakeAt
		}
		rest := resting
		switch exact := distance <= l.free[s]; {
		case s.resource() != memory || !covered.Pods:
		case exact && (s != MemoryAvailable || covered.Others):
			continue // the kernel notifies before the threshold is met
		case exact || covered.Stalls:
			// It notifies for pods' usage, or while caches are reclaimed.
			rest = longest
		}
		before, ok := l.distances[s]
		if !ok {
			before = distance
		}
		next = min(next, nextReading(s, l.pause, before, distance, rest))
	}
	l.distances = distances
	if l.kernel != nil {
		l.kernel.Arm(machine, pods)
	}
	if len(v.met) > 0 {
		next = min(next, resting)
	}
	if !v.next.IsZero() {
		next = min(next, max(time.Until(v.next), 0))
	}
	return next
}

// relieve relieves a due threshold. It returns true if a new reading is to follow at once, since a
// pod was evicted or has terminated. The error is why nothing could be done.
func (l *loop) relieve(ctx context.Context, v *verdict, m *met, read time.Time) (again bool, err error) {
	if l.awaitLeaving(ctx) {
		_, _ = l.awaitFreed(ctx, m.Signal) // it is read again
		return true, nil
	}
	l.Events.NodeEvent(v1.EventTypeWarning, thresholdMet, "Attempting to reclaim "+string(m.Signal.resource()))
	if l.reclaim != nil && l.reclaim(ctx, m) {
		left, err := l.awaitFreed(ctx, m.Signal)
		if err != nil {
			return false, err
		}
		if isRelieved(l.thresholds, left) {
			l.Log.Info("what was short could be freed: no pod is evicted", "threshold", m.Threshold.String())
			return false, nil
		}
		if room, told := left[m.Signal]; told {
			read = time.Now()
			m.amount, m.read = room, read
		}
	}
	if l.unended { // one pod may hang; without a runtime, further evictions are futile
		if _, err := l.Readings.Places(ctx); err != nil {
			return false, fmt.Errorf("the last one did not end, and the runtime does not answer: %w", err)
		}
	}
	pods, err := l.rank(ctx, m)
	if err != nil {
		return false, err
	}
	for i := range v.due {
		l.metrics.age.WithLabelValues(string(v.due[i].Signal)).Observe(time.Since(read).Seconds())
	}
	victim, err := choose(m, pods)
	for i := range pods {
		if pods[i].critical && (victim < 0 || i < victim) {
			l.note(pods[i].pod, "leave the pod as it is: it is critical", m.Threshold.String()+" is met")
		}
	}
	switch {
	case err != nil:
		return false, err
	case l.isAsRanked(&pods[victim]):
		l.evict(ctx, m, pods, victim)
	}
	return true, nil // else it terminated or was evicted while pods were measured
}

// computeGrace returns the grace period of an evicted pod in seconds; most limits that of a soft
// threshold, and is negative for no limit.
func computeGrace(t *Threshold, p *v1.Pod, most int64) int64 {
	if t.isHard() {
		return hardGrace
	}
	own := int64(v1.DefaultTerminationGracePeriodSeconds)
	if p.Spec.TerminationGracePeriodSeconds != nil {
		own = *p.Spec.TerminationGracePeriodSeconds
	}
	if most < 0 {
		return own
	}
	return min(most, own)
}

// evict evicts the pod of the ranking. For a hard threshold, it waits until the pod's resources are
// freed.
func (l *loop) evict(ctx context.Context, m *met, pods []candidate, victim int) {
	what, p := m.Signal.resource(), pods[victim].wanted
	var holding sync.WaitGroup
	defer holding.Wait()
	if l.kernel != nil && what == memory && m.isHard() {
		// Before the eviction is reported: until it terminates, the pod could use the remaining
		// memory. The call may block for long while the kernel reclaims.
		holding.Go(func() { l.hold(p) })
	}
	reason, annotations := generateMessage(m, &pods[victim])
	o := &order{
		signal: m.Signal, grace: computeGrace(&m.Threshold, p, l.MaxGrace), message: reason + generateRanking(what, pods, victim, mostRanked), annotations: annotations,
		why: generateExplanation(m, reason, pods, victim),
		condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
			Reason: v1.PodReasonTerminationByKubelet, Message: reason,
		},
	}
	l.Log.Warn("a pod is evicted", "pod", pod.Describe(p), "threshold", m.Threshold.String(), "available", quantity(what, m.amount.Available))
	var k *kill
	if pods[victim].leaving {
		k = l.hasten(p, m.Signal, o.why)
	} else {
		k = l.begin(p, o)
	}
	if !m.isHard() {
		l.granted = k // a hard threshold that is met meanwhile does not wait for it
		return
	}
	l.setHurried(p.UID)
	if l.isGranted(p.UID) {
		l.granted = nil
	}
	l.await(ctx, k)
	l.finish(ctx, k)
}

// hold prevents the pod from using more memory.
func (l *loop) hold(p *v1.Pod) {
	if err := l.kernel.Hold(p.UID); err != nil {
		l.Log.Warn("a pod that is evicted may take more memory until it ends", "pod", pod.Describe(p), "error", err)
	}
}
