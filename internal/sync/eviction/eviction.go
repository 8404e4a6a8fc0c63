package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

const (
	// grace is how long, in seconds, containers of a pod may take that exceeds a limit of local
	// storage.
	grace = 1
	// killLimit is how long the end of an evicted pod is waited for.
	killLimit = 10 * time.Second
)

// The event of a pod that does not end in time; the strings are the kubelet's.
const (
	exceededGracePeriod        = "ExceededGracePeriod"
	exceededGracePeriodMessage = "Container runtime did not kill the pod within specified grace period."
)

// Storage measures what pods have on this machine.
type Storage interface {
	// Local walks files of one pod, and may take as long as there are files.
	Local(ctx context.Context, p *v1.Pod, s *pod.Status, of stats.Extent) (stats.Local, error)
}

// PodKiller ends pods.
type PodKiller interface {
	// EvictPod ends the pod for good, within so many seconds; status is applied to its final
	// status. It never blocks. When no container of the pod runs any more, done is closed.
	EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{})
}

// Lifecycles tells how far pods are.
type Lifecycles interface {
	Get(uid pod.UID) (pod.Lifecycle, bool)
	// Subscribe returns an inbox that gets every pod whose lifecycle changes. It is called before
	// any does.
	Subscribe() *pod.Inbox[pod.UID]
}

// Config is what a Manager needs. Its functions do not block.
type Config struct {
	Lifecycles Lifecycles
	// Pod returns a pod that is wanted; Allotted that pod with the resources that it was allotted,
	// and Observed what the runtime showed of it last.
	Pod      func(uid pod.UID) (*v1.Pod, bool)
	Allotted func(p *v1.Pod) *v1.Pod
	Observed func(uid pod.UID) (*pod.Status, bool)
	// Ended reports whether the pod has failed or succeeded.
	Ended func(uid pod.UID) bool
	// IsCritical reports whether the pod is never evicted.
	IsCritical func(p *v1.Pod) bool
	Storage    Storage
	// Space returns what is free on the file system of a path.
	Space  func(path string) (stats.Space, error)
	Killer PodKiller
	Event  func(p *v1.Pod, container, eventtype, reason, message string)
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Journal *journal.Journal
	Log     *slog.Logger
}

// Manager holds pods to their limits of local storage.
type Manager struct {
	Config
	metrics *metrics
	changed *pod.Inbox[pod.UID]
	pods    map[pod.UID]*limited // those that run and have limits; Run's
}

// limited is a pod with limits.
type limited struct {
	pod          *v1.Pod
	memory, disk limits
	last         walk
	spared       Signal // the critical pod exceeds this, as was told
	failed       bool   // it could once not be measured, as was told
}

// New returns a Manager that follows pods once Run is called.
func New(cfg Config) *Manager {
	return &Manager{Config: cfg, metrics: newMetrics(cfg.Metrics), changed: cfg.Lifecycles.Subscribe(), pods: map[pod.UID]*limited{}}
}

// Run looks at pods with limits until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
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

// follow takes note of how far a pod is. It has limits to be held to while containers of it may
// run.
func (m *Manager) follow(uid pod.UID) {
	l, ok := m.Lifecycles.Get(uid)
	runs := ok && (l.State == pod.Syncing || l.State == pod.Terminating) && !l.Evicted
	p, ok := m.Pod(uid)
	if !runs || !ok {
		delete(m.pods, uid)
		return
	}
	memory, disk := computeLimits(m.Allotted(p))
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

// round looks at each pod that may exceed a limit, that which was not looked at for the longest
// time first, and evicts those that do.
func (m *Manager) round(ctx context.Context) {
	free := m.newSpaces()
	var kills []*kill
	for _, l := range slices.SortedFunc(maps.Values(m.pods), func(a, b *limited) int { return a.last.ended.Compare(b.last.ended) }) {
		if m.Ended(l.pod.UID) {
			continue
		}
		e := m.look(ctx, l, free)
		if ctx.Err() != nil {
			return
		}
		p, ok := m.Pod(l.pod.UID) // as it is now: a walk takes time
		switch {
		case e == nil || !ok:
		case m.IsCritical(p):
			m.spare(l, e)
		default:
			delete(m.pods, p.UID)
			kills = append(kills, m.evict(p, e))
		}
	}
	for _, k := range kills {
		m.await(ctx, k)
	}
}

// look returns the limit that the pod exceeds, nil if there is none or if it is not time to walk
// its files.
func (m *Manager) look(ctx context.Context, l *limited, free func(stats.Space) (uint64, bool)) *excess {
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

// measure returns which of the limits is exceeded, and what is known of the file systems since.
// What cannot be measured is told once.
func (m *Manager) measure(ctx context.Context, l *limited, of *limits) (*excess, walk) {
	s, ok := m.Observed(l.pod.UID)
	if !ok {
		s = &pod.Status{UID: l.pod.UID}
	}
	used, err := m.Storage.Local(ctx, l.pod, s, of.extent())
	if err != nil {
		if !l.failed && ctx.Err() == nil {
			m.Log.Warn("local storage of a pod cannot be measured: it is not held to its limits", "pod", pod.Describe(l.pod), "error", err)
		}
		l.failed = true
		return nil, walk{}
	}
	e, headroom := computeExcess(of, &used)
	return e, walk{spaces: used.Spaces, headroom: headroom}
}

// newSpaces returns a function that asks once what is free on a file system.
func (m *Manager) newSpaces() func(stats.Space) (uint64, bool) {
	asked := map[uint64]uint64{}
	return func(s stats.Space) (uint64, bool) {
		if free, ok := asked[s.Device]; ok {
			return free, true
		}
		now, err := m.Space(s.Path)
		if err != nil || now.Device != s.Device {
			return 0, false
		}
		asked[s.Device] = now.Free
		return now.Free, true
	}
}

// spare tells once that a critical pod exceeds a limit.
func (m *Manager) spare(l *limited, e *excess) {
	if l.spared == e.signal {
		return
	}
	l.spared = e.signal
	m.Log.Error("cannot evict a critical pod", "pod", pod.Describe(l.pod), "signal", e.signal, "exceeded", e.message)
	m.note(l.pod, "leave the pod as it is: it is critical", e)
}

// kill is a pod that is being evicted.
type kill struct {
	pod    *v1.Pod
	signal Signal
	done   chan struct{}
	until  time.Time
}

func (m *Manager) evict(p *v1.Pod, e *excess) *kill {
	m.note(p, "evict the pod", e)
	m.Event(p, "", v1.EventTypeWarning, lifecycle.Evicted, e.message)
	k := &kill{pod: p, signal: e.signal, done: make(chan struct{}), until: time.Now().Add(killLimit)}
	m.Killer.EvictPod(p, grace, func(s *v1.PodStatus) {
		s.Phase, s.Reason, s.Message = v1.PodFailed, lifecycle.Evicted, e.message
	}, k.done)
	return k
}

// await waits for the end of an evicted pod, within bounds.
func (m *Manager) await(ctx context.Context, k *kill) {
	limit := time.NewTimer(time.Until(k.until))
	defer limit.Stop()
	select {
	case <-k.done:
	case <-ctx.Done():
		return
	case <-limit.C:
		m.Event(k.pod, "", v1.EventTypeWarning, exceededGracePeriod, exceededGracePeriodMessage)
	}
	m.metrics.evictions.WithLabelValues(string(k.signal)).Inc()
}

func (m *Manager) note(p *v1.Pod, decision string, e *excess) {
	m.Journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "eviction", Decision: decision, Why: fmt.Sprintf("%s: %s%d bytes are used", e.signal, e.message, e.used),
	})
}
