package eviction

import (
	"context"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

const (
	// settleProcesses and settleDisks are how long it is waited for what an evicted pod held beyond
	// its processes: tmpfs and files go with its volumes.
	settleProcesses, settleDisks = 3 * time.Second, 30 * time.Second
	// settleStep is how often that is looked for meanwhile.
	settleStep = 100 * time.Millisecond
)

// loop looks after some of the thresholds.
type loop struct {
	*Manager
	conditions []v1.NodeConditionType
	settle     time.Duration
	kernel     Kernel // nil: nobody wakes this loop
	// measure reads what is left. reclaim frees what it can without the end of a pod, and returns
	// whether there was anything to try; nil: nothing can be. rank returns the pods that may be
	// evicted, the first one in front.
	measure func(ctx context.Context) (rooms, error)
	reclaim func(ctx context.Context, m *met) bool
	rank    func(ctx context.Context, m *met) ([]candidate, error)

	// The rest is run's.
	thresholds []Threshold
	distances  map[Signal]uint64 // to the nearest threshold, as of the last reading
	pause      time.Duration     // before the last reading
	failing    string            // the error that was told
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
	if err != nil {
		l.tell(ctx, err)
		return resting
	}
	l.failing = ""
	v := l.judge(l, left)
	next := l.computePause(left, &v)
	if len(v.due) == 0 {
		return next
	}
	if l.relieve(ctx, &v, read) {
		return 0 // the next victim is chosen on figures of after
	}
	return min(next, resting)
}

// tell logs an error once.
func (l *loop) tell(ctx context.Context, err error) {
	if ctx.Err() == nil && err.Error() != l.failing {
		l.failing = err.Error()
		l.Log.Warn("it cannot be seen whether the node runs short", "error", err)
	}
}

// computePause returns when to read again, and has the kernel wake for what it can.
func (l *loop) computePause(left rooms, v *verdict) time.Duration {
	next := longest
	distances := map[Signal]uint64{}
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
		if l.kernel != nil && distance <= l.free[s] {
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

// relieve does something for the first threshold that is due, and returns whether a pod was
// evicted.
func (l *loop) relieve(ctx context.Context, v *verdict, read time.Time) bool {
	m := &v.due[0]
	what := m.Signal.resource()
	l.Events.NodeEvent(v1.EventTypeWarning, thresholdMet, "Attempting to reclaim "+string(what))
	if l.reclaim != nil && l.reclaim(ctx, m) {
		now := time.Now()
		left, err := l.measure(ctx)
		if err != nil {
			l.tell(ctx, err)
			return false
		}
		if isRelieved(l.thresholds, left) {
			l.Log.Info("what was short could be freed: no pod is evicted", "threshold", m.Threshold.String())
			return false
		}
		if room, told := left[m.Signal]; told {
			m.room, read = room, now
		}
	}
	pods, err := l.rank(ctx, m)
	if err != nil {
		l.tell(ctx, err)
		return false
	}
	for i := range v.due {
		l.metrics.age.WithLabelValues(string(v.due[i].Signal)).Observe(time.Since(read).Seconds())
	}
	for i := range pods {
		if c := &pods[i]; !c.critical {
			l.evict(ctx, m, pods, i)
			return true
		}
		l.note(pods[i].pod, "leave the pod as it is: it is critical", m.Threshold.String()+" is met")
	}
	if ctx.Err() == nil {
		l.Log.Error("the node is short and no pod can be evicted", "threshold", m.Threshold.String(), "available", quantity(what, m.room.Available))
	}
	return false
}

// evict evicts the pod of the ranking, and waits until what it held is free.
func (l *loop) evict(ctx context.Context, m *met, pods []candidate, victim int) {
	what, p := m.Signal.resource(), pods[victim].pod
	grace := int64(hardGrace)
	if !m.isHard() {
		grace = l.MaxGrace
		if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
	}
	reason, annotations := generateMessage(m, &pods[victim])
	o := &order{
		signal: m.Signal, grace: grace, message: reason + generateRanking(what, pods, victim, mostRanked), annotations: annotations,
		why: m.Threshold.String() + ": " + reason + generateRanking(what, pods, victim, mostExplained),
		condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
			Reason: v1.PodReasonTerminationByKubelet, Message: reason,
		},
	}
	l.Log.Warn("a pod is evicted", "pod", pod.Describe(p), "threshold", m.Threshold.String(), "available", quantity(what, m.room.Available))
	l.await(ctx, l.begin(p, o))
	end := time.NewTimer(l.settle)
	defer end.Stop()
	step := time.NewTicker(settleStep)
	defer step.Stop()
	for {
		if at, known := l.Lifecycle(p.UID); !known || at.State == pod.Finished {
			return
		}
		select {
		case <-step.C:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// candidates returns the pods that may be evicted: those of which containers may run, and that are
// not evicted already.
func (m *Manager) candidates(what v1.ResourceName) []candidate {
	var out []candidate
	for _, p := range m.Pods() {
		l, ok := m.Lifecycle(p.UID)
		if !ok || l.Evicted || l.State != pod.Syncing && l.State != pod.Terminating {
			continue
		}
		c := newCandidate(m.Allotted(p), what)
		c.critical = m.IsCritical(p)
		out = append(out, c)
	}
	return out
}
