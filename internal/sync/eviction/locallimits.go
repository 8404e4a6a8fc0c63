package eviction

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/stats"
	"berth/internal/pod"
)

// Storage measures the local storage of pods.
type Storage interface {
	// Local measures files of one pod, in time proportional to their number. With an error, it
	// returns the partial result.
	Local(ctx context.Context, p *v1.Pod, s *pod.Status, of stats.Extent) (stats.Local, error)
}

// Lifecycles provides the lifecycles of pods.
type Lifecycles interface {
	Get(uid pod.UID) (pod.Lifecycle, bool)
	// Subscribe returns an inbox that receives every pod whose lifecycle changes. It is called
	// before any does.
	Subscribe() *pod.Inbox[pod.UID]
}

// LimitsConfig holds the dependencies of LocalLimits. Its functions do not block.
type LimitsConfig struct {
	Evictor    *Evictor
	Lifecycles Lifecycles
	// Pod returns a desired pod, Allocated that pod with its allocation, and Observed its newest
	// observed state.
	Pod       func(uid pod.UID) (*v1.Pod, bool)
	Allocated func(p *v1.Pod) *v1.Pod
	Observed  func(uid pod.UID) (*pod.Status, bool)
	// Ended reports whether the pod has failed or succeeded.
	Ended   func(uid pod.UID) bool
	Storage Storage
	// Space returns the free space of the file system at a path.
	Space func(path string) (stats.Space, error)
}

// LocalLimits enforces pods' limits of local storage.
type LocalLimits struct {
	LimitsConfig
	changed *pod.Inbox[pod.UID]
	pods    map[pod.UID]*limited // running pods with limits; owned by Run
}

type limited struct {
	pod          *v1.Pod
	memory, disk limits
	last         walk
	reported     Signal // the signal of the reported excess of a critical pod
	failed       bool   // a failed measurement was logged
}

// NewLocalLimits returns LocalLimits that enforce limits once Run is called.
func NewLocalLimits(cfg LimitsConfig) *LocalLimits {
	return &LocalLimits{LimitsConfig: cfg, changed: cfg.Lifecycles.Subscribe(), pods: map[pod.UID]*limited{}}
}

// Run enforces limits until ctx is done.
func (m *LocalLimits) Run(ctx context.Context) error {
	timer := time.NewTimer(period)
	timer.Stop()
	defer timer.Stop()
	for ticking := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.changed.Wake():
			for _, uid := range m.changed.Take() {
				m.follow(uid)
			}
		case <-timer.C:
			ticking = false
			m.round(ctx)
		}
		if len(m.pods) > 0 && !ticking {
			timer.Reset(period)
			ticking = true
		}
		if len(m.pods) == 0 && ticking {
			timer.Stop()
			ticking = false
		}
	}
}

// follow updates the pod's limits after a change of its lifecycle. They are enforced while its
// containers may run.
func (m *LocalLimits) follow(uid pod.UID) {
	l, ok := m.Lifecycles.Get(uid)
	runs := ok && (l.State == pod.Syncing || l.State == pod.Terminating) && !l.Evicted
	p, ok := m.Pod(uid)
	if !runs || !ok {
		delete(m.pods, uid)
		return
	}
	memory, disk := computeLimits(m.Allocated(p))
	if memory.none() && disk.none() {
		delete(m.pods, uid)
		return
	}
	of := m.pods[uid]
	if of == nil {
		of = &limited{}
		m.pods[uid] = of
	}
	of.pod, of.memory, of.disk = p, memory, disk
}

// round checks each pod that may exceed a limit, the least recently measured first, and evicts
// those that do.
func (m *LocalLimits) round(ctx context.Context) {
	free := m.newSpaces()
	var kills []*kill
	for _, l := range slices.SortedFunc(maps.Values(m.pods), func(a, b *limited) int { return a.last.ended.Compare(b.last.ended) }) {
		if m.Ended(l.pod.UID) {
			continue
		}
		e := m.inspect(ctx, l, free)
		if ctx.Err() != nil {
			return
		}
		p, ok := m.Pod(l.pod.UID) // the current state: measuring takes time
		at, _ := m.Lifecycles.Get(l.pod.UID)
		switch {
		case e == nil || !ok || at.Evicted:
		case m.Evictor.IsCritical(p):
			m.reportCritical(l, e)
		default:
			delete(m.pods, p.UID)
			kills = append(kills, m.evict(p, e))
		}
	}
	for _, k := range kills {
		m.Evictor.await(ctx, k)
	}
}

// inspect returns the limit that the pod exceeds, nil if there is none or if its files are not due
// to be measured.
func (m *LocalLimits) inspect(ctx context.Context, l *limited, free func(stats.Space) (uint64, bool)) *excess {
	if !l.memory.none() {
		if e, _ := m.measure(ctx, l, &l.memory); e != nil {
			return e
		}
	}
	began := time.Now()
	if l.disk.none() || !nextWalk(&l.last, began, free) {
		return nil
	}
	e, last := m.measure(ctx, l, &l.disk)
	last.ended, last.took = time.Now(), time.Since(began)
	l.last = last
	return e
}

// measure returns the exceeded limit, if any, and the state of the file systems. A failure is
// logged once.
func (m *LocalLimits) measure(ctx context.Context, l *limited, of *limits) (*excess, walk) {
	s, ok := m.Observed(l.pod.UID)
	if !ok {
		s = &pod.Status{UID: l.pod.UID}
	}
	used, err := m.Storage.Local(ctx, l.pod, s, of.extent())
	if err != nil {
		if !l.failed && ctx.Err() == nil {
			m.Evictor.Log.Warn("local storage of a pod cannot be measured: it is not held to its limits", "pod", pod.Describe(l.pod), "error", err)
		}
		l.failed = true
		return nil, walk{}
	}
	e, headroom := computeExcess(of, &used)
	return e, walk{spaces: used.Spaces, headroom: headroom}
}

// newSpaces returns a function that caches the free space of each file system.
func (m *LocalLimits) newSpaces() func(stats.Space) (uint64, bool) {
	cached := map[uint64]uint64{}
	return func(s stats.Space) (uint64, bool) {
		if free, ok := cached[s.Device]; ok {
			return free, true
		}
		now, err := m.Space(s.Path)
		if err != nil || now.Device != s.Device {
			return 0, false
		}
		cached[s.Device] = now.Free
		return now.Free, true
	}
}

// reportCritical reports, once, that a critical pod exceeds a limit.
func (m *LocalLimits) reportCritical(l *limited, e *excess) {
	if l.reported == e.signal {
		return
	}
	l.reported = e.signal
	m.Evictor.Log.Error("cannot evict a critical pod", "pod", pod.Describe(l.pod), "signal", e.signal, "exceeded", e.message)
	m.Evictor.note(l.pod, "leave the pod as it is: it is critical", e.why())
}

func (m *LocalLimits) evict(p *v1.Pod, e *excess) *kill {
	return m.Evictor.begin(p, &order{signal: e.signal, grace: hardGrace, message: e.message, why: e.why()})
}
