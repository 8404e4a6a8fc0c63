package eviction

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// resources are what the thresholds of a loop are about.
type resources interface {
	measure(ctx context.Context) (reading, error)
	// reclaim frees resources without an eviction. It reports whether there was anything to try.
	reclaim(ctx context.Context, m *met) bool
	// rank returns the candidates, the first victim first.
	rank(ctx context.Context, m *met, candidates func() []candidate) ([]candidate, error)
}

// reading has the available amounts.
type reading struct {
	left observed
	// free is how much memory can be used before caches are reclaimed: until then, the kernel's
	// usage shows it.
	free map[Signal]uint64
}

// loop relieves a part of the thresholds.
type loop struct {
	evictor   *Evictor
	evaluator *evaluator
	resources resources
	pods      *podView
	readings  Readings
	maxGrace  int64
	settle    time.Duration
	quiet     time.Duration
	kernel    Kernel

	// Owned by the loop's goroutine:
	distances map[Signal]uint64 // to the nearest threshold, as of the last reading
	pause     time.Duration     // before the last reading
	reported  map[string]error  // last logged error by operation
	// retryAt is when the next attempt may follow after a failed one; lastHung: the last victim did
	// not terminate in time.
	retryAt  time.Time
	lastHung bool
	leaving  map[pod.UID]time.Time // leaving pods, since when they are waited for
	// granted is the pod with the grace period of a soft threshold; late is one that did not
	// terminate in time. nil: there is none.
	granted, late *kill
}

// run reads the available amounts, relieves due thresholds, and waits for the next reading.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	woken := l.kernel.Wake()
	for {
		select {
		case <-ctx.Done():
			return
		case <-woken:
		case <-l.granted.end():
		case <-l.late.end():
			l.late, l.retryAt = nil, time.Time{}
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
	r, err := l.resources.measure(ctx)
	l.report(ctx, cannotSee, err)
	if err != nil {
		return resting
	}
	v := l.evaluator.evaluate(r.left)
	next := l.computePause(&r, &v)
	if l.granted != nil {
		next = min(next, max(time.Until(l.granted.until), 0))
	}
	m := nextDue(v.due, l.granted)
	if m == nil {
		return next
	}
	if time.Now().Before(l.retryAt) {
		return min(next, time.Until(l.retryAt))
	}
	again, err := l.relieve(ctx, &v, m, read)
	l.report(ctx, cannotEvict, err)
	if err != nil {
		l.retryAt = time.Now().Add(resting)
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
		l.evictor.Log.Error(what, "error", err)
	}
	l.reported[what] = err
}

// computePause returns the time until the next reading, and arms the kernel notifications.
func (l *loop) computePause(r *reading, v *verdict) time.Duration {
	next := longest
	distances := map[Signal]uint64{}
	covered := l.kernel.Coverage()
	machine, pods := int64(math.MaxInt64), int64(math.MaxInt64)
	for _, t := range l.evaluator.thresholds {
		amount, ok := r.left[t.Signal]
		if !ok {
			next = min(next, resting)
			continue
		}
		least := t.Value.of(amount.Capacity)
		distance := amount.Available - min(least, amount.Available)
		if was, ok := distances[t.Signal]; !ok || distance < was && distance > 0 || was == 0 {
			distances[t.Signal] = distance
		}
	}
	for s, distance := range distances {
		switch wakeAt := int64(min(computeWakeAt(distance, r.free[s]), math.MaxInt64)); s {
		case MemoryAvailable:
			machine = wakeAt
		case AllocatableMemoryAvailable:
			pods = wakeAt
		}
		rest := resting
		switch exact := distance <= r.free[s]; {
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
	l.kernel.Arm(machine, pods)
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
		_, _ = l.awaitFreed(ctx, m.threshold.Signal) // it is read again
		return true, nil
	}
	l.evictor.Events.NodeEvent(v1.EventTypeWarning, thresholdMet, "Attempting to reclaim "+string(m.threshold.Signal.resource()))
	if l.resources.reclaim(ctx, m) {
		left, err := l.awaitFreed(ctx, m.threshold.Signal)
		if err != nil {
			return false, err
		}
		if isRelieved(l.evaluator.thresholds, left) {
			l.evictor.Log.Info("what was short could be freed: no pod is evicted", "threshold", m.threshold.String())
			return false, nil
		}
		if amount, ok := left[m.threshold.Signal]; ok {
			read = time.Now()
			m.amount, m.read = amount, read
		}
	}
	if l.lastHung { // one pod may hang; without a runtime, further evictions are futile
		if _, err := l.readings.Places(ctx); err != nil {
			return false, fmt.Errorf("the last one did not end, and the runtime does not answer: %w", err)
		}
	}
	pods, err := l.resources.rank(ctx, m, func() []candidate { return l.pods.candidates(&m.threshold, l.leaving) })
	if err != nil {
		return false, err
	}
	for i := range v.due {
		l.evictor.metrics.age.WithLabelValues(string(v.due[i].threshold.Signal)).Observe(time.Since(read).Seconds())
	}
	victim, err := choose(m, pods)
	for i := range pods {
		if pods[i].critical && (victim < 0 || i < victim) {
			l.evictor.note(pods[i].pod, "leave the pod as it is: it is critical", m.threshold.String()+" is met")
		}
	}
	switch {
	case err != nil:
		return false, err
	case l.pods.isAsRanked(&pods[victim]):
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
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	if p.Spec.TerminationGracePeriodSeconds != nil {
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	if most < 0 {
		return grace
	}
	return min(most, grace)
}

// evict evicts the pod of the ranking. For a hard threshold, it waits until the pod's resources are
// freed.
func (l *loop) evict(ctx context.Context, m *met, pods []candidate, victim int) {
	what, p := m.threshold.Signal.resource(), pods[victim].wanted
	var holding sync.WaitGroup
	defer holding.Wait()
	if what == memory && m.threshold.isHard() {
		// Before the eviction is reported: until it terminates, the pod could use the remaining
		// memory. The call may block for long while the kernel reclaims.
		holding.Go(func() { l.hold(p) })
	}
	reason, annotations := generateMessage(m, &pods[victim])
	o := &order{
		signal: m.threshold.Signal, grace: computeGrace(&m.threshold, p, l.maxGrace), message: reason + generateRanking(what, pods, victim, mostRanked), annotations: annotations,
		why: generateExplanation(m, reason, pods, victim),
		condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
			Reason: v1.PodReasonTerminationByKubelet, Message: reason,
		},
	}
	l.evictor.Log.Warn("a pod is evicted", "pod", pod.Describe(p), "threshold", m.threshold.String(), "available", quantity(what, m.amount.Available))
	var k *kill
	if pods[victim].leaving {
		k = l.evictor.shortenGrace(p, m.threshold.Signal, o.why)
	} else {
		k = l.evictor.begin(p, o)
	}
	if !m.threshold.isHard() {
		l.granted = k // a hard threshold that is met meanwhile does not wait for it
		return
	}
	l.pods.setShortened(p.UID)
	if l.isGranted(p.UID) {
		l.granted = nil
	}
	l.evictor.await(ctx, k)
	l.finish(ctx, k)
}

func (l *loop) hold(p *v1.Pod) {
	if err := l.kernel.Hold(p.UID); err != nil {
		l.evictor.Log.Warn("a pod that is evicted may take more memory until it ends", "pod", pod.Describe(p), "error", err)
	}
}
