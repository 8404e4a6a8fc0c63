package eviction

import (
	"context"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// loop looks after some of the thresholds.
type loop struct {
	*Manager
	conditions []v1.NodeConditionType
	settle     time.Duration
	quiet      time.Duration
	kernel     Kernel // nil: nobody wakes this loop
	// measure reads what is left. reclaim frees what it can without the end of a pod, and returns
	// whether there was anything to try; nil: nothing can be. rank returns the pods that may be
	// evicted, the first one in front.
	measure func(ctx context.Context) (rooms, error)
	reclaim func(ctx context.Context, m *met) bool
	rank    func(ctx context.Context, m *met) ([]candidate, error)

	thresholds []Threshold // written by the loop alone, under Manager.mu

	// The rest is the loop's.
	distances map[Signal]uint64 // to the nearest threshold, as of the last reading
	pause     time.Duration     // before the last reading
	told      map[string]error  // errors that were told, by what could not be done
	// rests is until when nothing is tried, as nothing could be done; unended says that the last
	// victim did not end in time.
	rests   time.Time
	unended bool
	leaving map[pod.UID]time.Time // pods that leave, since when they are waited for
	// free is how much can be taken of memory before caches are given up for it: until then the
	// kernel sees what is taken.
	free map[Signal]uint64
}

// run reads what is left, relieves what is due, and waits until it may be another.
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

// round is one reading and what follows from it. It returns when to read again at the latest.
func (l *loop) round(ctx context.Context) time.Duration {
	read := time.Now()
	left, err := l.measure(ctx)
	l.tell(ctx, cannotSee, err)
	if err != nil {
		return resting
	}
	v := l.judge(l, left)
	next := l.computePause(left, &v)
	if len(v.due) == 0 {
		return next
	}
	if time.Now().Before(l.rests) {
		return min(next, time.Until(l.rests))
	}
	again, err := l.relieve(ctx, &v, read)
	l.tell(ctx, cannotEvict, err)
	if err != nil {
		l.rests = time.Now().Add(resting)
	}
	if again {
		return 0 // the next victim is chosen on figures of after
	}
	return min(next, resting)
}

// What cannot be done, for the log.
const (
	cannotSee   = "it cannot be seen whether the node runs short"
	cannotEvict = "the node runs short, and no pod is evicted"
)

// tell logs an error unless it is the last one that was told of that; nil is none.
func (l *loop) tell(ctx context.Context, what string, err error) {
	if last := l.told[what]; err != nil && ctx.Err() == nil && (last == nil || last.Error() != err.Error()) {
		l.Log.Error(what, "error", err)
	}
	l.told[what] = err
}

// computePause returns when to read again, and has the kernel wake for what it can.
func (l *loop) computePause(left rooms, v *verdict) time.Duration {
	next := longest
	distances := map[Signal]uint64{}
	watched := l.kernel != nil && l.kernel.Watches()
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
		switch s {
		case MemoryAvailable:
			machine = int64(min(distance, math.MaxInt64))
		case AllocatableMemoryAvailable:
			pods = int64(min(distance, math.MaxInt64))
		}
		if watched && distance <= l.free[s] {
			continue // it is the kernel that wakes
		}
		before, ok := l.distances[s]
		if !ok {
			before = distance
		}
		next = min(next, nextReading(s, l.pause, before, distance))
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

// relieve does something for the first threshold that is due, and returns whether it is to be read
// again at once, as a pod was evicted or has gone; an error is why nothing could be done.
func (l *loop) relieve(ctx context.Context, v *verdict, read time.Time) (again bool, err error) {
	m := &v.due[0]
	if l.awaitLeaving(ctx) {
		_, _ = l.awaitFreed(ctx, m) // it is read again
		return true, nil
	}
	l.Events.NodeEvent(v1.EventTypeWarning, thresholdMet, "Attempting to reclaim "+string(m.Signal.resource()))
	if l.reclaim != nil && l.reclaim(ctx, m) {
		left, err := l.awaitFreed(ctx, m)
		if err != nil {
			return false, err
		}
		if isRelieved(l.thresholds, left) {
			l.Log.Info("what was short could be freed: no pod is evicted", "threshold", m.Threshold.String())
			return false, nil
		}
		if room, told := left[m.Signal]; told {
			m.room, read = room, time.Now()
		}
	}
	if l.unended { // one pod may be deaf; who asks a runtime that is down loses all
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
	for i := range pods {
		switch c := &pods[i]; {
		case c.critical:
			l.note(c.pod, "leave the pod as it is: it is critical", m.Threshold.String()+" is met")
		case !l.mayEvict(c.pod.UID): // it went, or somebody else evicts it, while pods were measured
			return true, nil
		default:
			l.evict(ctx, m, pods, i)
			return true, nil
		}
	}
	return false, fmt.Errorf("%s is met, and of %d pods that run all are critical", m.Threshold.String(), len(pods))
}

// computeGrace returns how many seconds a pod has to end when the threshold is due; most bounds
// what a soft one grants, and is negative for no bound.
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

// evict evicts the pod of the ranking, and waits until what it held is free.
func (l *loop) evict(ctx context.Context, m *met, pods []candidate, victim int) {
	what, p := m.Signal.resource(), pods[victim].wanted
	reason, annotations := generateMessage(m, &pods[victim])
	o := &order{
		signal: m.Signal, grace: computeGrace(&m.Threshold, p, l.MaxGrace), message: reason + generateRanking(what, pods, victim, mostRanked), annotations: annotations,
		why: m.Threshold.String() + ": " + reason + generateRanking(what, pods, victim, mostExplained),
		condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
			Reason: v1.PodReasonTerminationByKubelet, Message: reason,
		},
	}
	l.Log.Warn("a pod is evicted", "pod", pod.Describe(p), "threshold", m.Threshold.String(), "available", quantity(what, m.room.Available))
	k := l.begin(p, o)
	if l.kernel != nil && what == memory && m.isHard() {
		// While it is asked to end it could take what is left.
		if err := l.kernel.Hold(p.UID); err != nil {
			l.Log.Warn("a pod that is evicted may take more memory until it ends", "pod", pod.Describe(p), "error", err)
		}
	}
	l.unended = !l.await(ctx, k)
	l.awaitLeaving(ctx)
	_, _ = l.awaitFreed(ctx, m) // it is read again
}

// mayEvict reports whether containers of the pod may run, and it is not leaving already.
func (m *Manager) mayEvict(uid pod.UID) bool {
	l, ok := m.Lifecycle(uid)
	return ok && !m.isLeaving(uid) && (l.State == pod.Syncing || l.State == pod.Terminating)
}

// candidates returns the pods that may be evicted.
func (m *Manager) candidates(what v1.ResourceName) []candidate {
	var out []candidate
	for _, p := range m.Pods() {
		if !m.mayEvict(p.UID) {
			continue
		}
		c := newCandidate(m.Allotted(p), what)
		c.wanted, c.critical = p, m.IsCritical(p)
		out = append(out, c)
	}
	return out
}
