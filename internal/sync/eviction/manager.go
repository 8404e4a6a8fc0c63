package eviction

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/host/pressure"
	"berth/internal/observe/stats"
	"berth/internal/pod"
)

// fileVersion is that of the form of what survives the agent.
const fileVersion = 1

// Readings reads what is left of the machine, each time anew.
type Readings interface {
	Use(ctx context.Context) (stats.Use, error)
	PodUses(ctx context.Context) (map[pod.UID]stats.PodUse, error)
	// Places asks the runtime where its files are.
	Places(ctx context.Context) (stats.Places, error)
	FileSystem(path string) (stats.FileSystem, error)
}

// Garbage frees a disk without the end of a pod.
type Garbage interface {
	// RemoveDead removes containers that have ended, also those of pods that have failed or
	// succeeded.
	RemoveDead(ctx context.Context) error
	// RemoveUnused removes images that nobody uses, and returns their bytes.
	RemoveUnused(ctx context.Context) (uint64, error)
}

// Kernel wakes who waits for memory to run short.
type Kernel interface {
	Wake() <-chan struct{}
	// Arm says how many bytes the machine, and the pods in all, may take before somebody is to be
	// woken; math.MaxInt64 is for ever. It does not block.
	Arm(machine, pods int64)
	// Coverage returns for which consumption of memory it wakes; the rest is read periodically.
	Coverage() pressure.Coverage
	// Hold keeps the pod, which is about to end, from taking more memory, where the kernel can.
	Hold(uid pod.UID) error
}

// Config is what a Manager needs. Its functions do not block.
type Config struct {
	*Evictor
	// Thresholds are those of the configuration; none: nothing is looked for.
	Thresholds []Threshold
	// Transition is how long a condition lasts after the last threshold was met
	// (evictionPressureTransitionPeriod).
	Transition time.Duration
	// MaxGrace bounds the grace of pods that soft thresholds end, in seconds.
	MaxGrace int64
	// Pressures gets the conditions; Changed is called when one began or ended.
	Pressures *Pressures
	Changed   func()
	Readings  Readings
	Garbage   Garbage
	Kernel    Kernel // nil: there is none
	// Pods returns the pods that are wanted, Allocated one with the resources that it was
	// allocated, Observed what the runtime showed of it last, and Lifecycle how far it is.
	Pods      func() []*v1.Pod
	Allocated func(p *v1.Pod) *v1.Pod
	Observed  func(uid pod.UID) (*pod.Status, bool)
	Lifecycle func(uid pod.UID) (pod.Lifecycle, bool)
	// Ended reports whether the pod has failed or succeeded.
	Ended   func(uid pod.UID) bool
	Storage Storage
	// Ready is closed when it is known what runs: before that nobody is evicted.
	Ready <-chan struct{}
	// Path is the file in which the state of thresholds survives the agent; "": it does not.
	Path string
}

// Manager is evictionManager: it looks what is left of memory, tasks and disks, and evicts pods
// before there is nothing.
type Manager struct {
	Config
	file *checkpoint.WarmFile[past]
	// processes looks after memory and tasks, disks after disks: a walk over files keeps the memory
	// waiting for nothing.
	processes, disks *loop
	ignored          []Threshold
	loaded           chan struct{} // closed by Load

	mu   sync.Mutex
	past past                   // guarded by mu; of both loops
	last map[Signal]Observation // guarded by mu; the last reading
	// hurried are evicted pods that have no more than the grace of a hard threshold, or had none
	// left; guarded by mu.
	hurried map[pod.UID]bool
}

// Observation is what was left of a signal, when it was read last.
type Observation struct {
	stats.Amount
	At time.Time
}

// New returns a Manager.
func New(cfg Config) *Manager {
	m := &Manager{Config: cfg, loaded: make(chan struct{}), last: map[Signal]Observation{}, hurried: map[pod.UID]bool{}}
	m.file = checkpoint.NewFile(checkpoint.FileConfig[past]{
		Path: cfg.Path, Version: fileVersion, What: "thresholds of eviction that are met", Log: cfg.Log,
		Content: func() past {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.past.clone()
		},
	})
	m.processes = &loop{Manager: m, reported: map[string]error{}, measure: m.readProcesses, rank: m.rankProcesses, settle: settleProcesses, quiet: quietProcesses, conditions: []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodePIDPressure}}
	m.disks = &loop{Manager: m, reported: map[string]error{}, settle: settleDisks, quiet: quietDisks, conditions: []v1.NodeConditionType{v1.NodeDiskPressure}}
	d := &disks{Manager: m}
	m.disks.measure, m.disks.rank, m.disks.reclaim = d.read, d.rankPods, d.reclaim
	for _, t := range cfg.Thresholds {
		if isContainerFs(t) {
			m.ignored = append(m.ignored, t)
		}
	}
	for _, t := range (layout{}).withContainerFs(cfg.Thresholds) {
		if isProcesses(t) {
			m.processes.thresholds = append(m.processes.thresholds, t)
		} else {
			m.disks.thresholds = append(m.disks.thresholds, t)
		}
	}
	if cfg.Kernel != nil && slices.ContainsFunc(m.processes.thresholds, func(t Threshold) bool { return t.Signal.resource() == memory }) {
		m.processes.kernel = cfg.Kernel
	}
	return m
}

// Load reads what an earlier agent knew. A condition that it saw lasts, as if it was seen now,
// until a reading says something else.
func (m *Manager) Load() error {
	defer close(m.loaded)
	for i := range m.ignored {
		m.Log.Error("a threshold is ignored: that of the file system of writable layers is the one of nodefs or imagefs, whichever that is; set these", "threshold", m.ignored[i].String())
	}
	p, err := m.file.Load()
	now := time.Now()
	kept := map[v1.NodeConditionType]time.Time{} // of conditions for which there still is a threshold
	for _, t := range m.Thresholds {
		c := t.Signal.condition()
		if seen, ok := p.Seen[c]; ok && kept[c].IsZero() {
			kept[c] = seen
		}
		if _, ok := p.Since[t.key()]; ok {
			kept[c] = now
		}
	}
	p.Seen = kept
	conditions := map[v1.NodeConditionType]bool{}
	for c, seen := range p.Seen {
		conditions[c] = seen.Add(m.Transition).After(now)
	}
	m.mu.Lock()
	m.past = p
	m.mu.Unlock()
	m.Pressures.set(slices.Collect(maps.Keys(conditions)), conditions)
	if err != nil {
		return fmt.Errorf("resetting the node conditions: %w", err)
	}
	return nil
}

// Health returns what cannot be written, since when and why, or nil.
func (m *Manager) Health() error { return m.file.Health() }

// Run looks until ctx is done, once Load has returned.
func (m *Manager) Run(ctx context.Context) error {
	for _, ready := range []<-chan struct{}{m.loaded, m.Ready} {
		select {
		case <-ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var loops sync.WaitGroup
	loops.Go(func() { _ = m.file.Run(ctx) })
	for _, l := range []*loop{m.processes, m.disks} {
		if len(l.thresholds) > 0 {
			loops.Go(func() { l.run(ctx) })
		}
	}
	loops.Wait()
	<-ctx.Done()
	return ctx.Err()
}

// judge compares a reading of a loop with its thresholds, and keeps and publishes what follows.
func (m *Manager) judge(l *loop, left observed) verdict {
	now := time.Now()
	m.mu.Lock()
	for _, t := range l.thresholds {
		delete(m.last, t.Signal)
	}
	for s, r := range left {
		m.last[s] = Observation{r, now}
	}
	before := m.past.only(l)
	after, v := judge(before, l.thresholds, left, m.Transition, now)
	changed := !before.equal(after)
	m.past = m.past.with(l, after)
	m.mu.Unlock()
	began, ended := m.Pressures.set(l.conditions, v.conditions)
	for _, c := range began {
		m.Log.Warn("the node runs short", "condition", c, "thresholds", describeMet(v.met))
	}
	for _, c := range ended {
		m.Log.Info("the node has enough again", "condition", c)
	}
	if changed {
		m.file.Changed()
	}
	if len(began)+len(ended) > 0 {
		m.Changed()
	}
	return v
}

// describeMet names thresholds that are met, with what is left.
func describeMet(of []met) []string {
	var out []string
	for i := range of {
		out = append(out, fmt.Sprintf("%s, available: %s", of[i].Threshold.String(), quantity(of[i].Signal.resource(), of[i].amount.Available)))
	}
	return out
}

// only returns the part of the past that is about the loop's thresholds and conditions.
func (p past) only(l *loop) past {
	out := past{map[string]time.Time{}, map[string]bool{}, map[v1.NodeConditionType]time.Time{}}
	for _, t := range l.thresholds {
		if since, ok := p.Since[t.key()]; ok {
			out.Since[t.key()] = since
		}
		if p.Due[t.key()] {
			out.Due[t.key()] = true
		}
	}
	for _, c := range l.conditions {
		if seen, ok := p.Seen[c]; ok {
			out.Seen[c] = seen
		}
	}
	return out
}

// with returns the past with the loop's part replaced. It forgets thresholds of which there are
// none any more.
func (p past) with(l *loop, part past) past {
	out := past{map[string]time.Time{}, map[string]bool{}, map[v1.NodeConditionType]time.Time{}}
	for _, other := range []*loop{l.processes, l.disks} {
		of := part
		if other != l {
			of = p.only(other)
		}
		maps.Copy(out.Since, of.Since)
		maps.Copy(out.Due, of.Due)
		maps.Copy(out.Seen, of.Seen)
	}
	return out
}

// equal reports whether both are the same but for when conditions were seen last.
func (p past) equal(o past) bool {
	sameTime := func(a, b time.Time) bool { return a.Equal(b) }
	anyTime := func(_, _ time.Time) bool { return true }
	return maps.EqualFunc(p.Since, o.Since, sameTime) && maps.Equal(p.Due, o.Due) && maps.EqualFunc(p.Seen, o.Seen, anyTime)
}

// State is a threshold and how it stands.
type State struct {
	Threshold
	// Left is what was left when it was read last; its Capacity is 0 before, and where it cannot be
	// told.
	Left Observation
	// Since is when the threshold began to be met; zero: it is not.
	Since time.Time
	// Ignored: it is in the configuration, and has no effect.
	Ignored bool
}

// Least is the amount that is to be left; 0 where it cannot be told what is.
func (s *State) Least() uint64 {
	if s.Left.Capacity == 0 {
		return 0
	}
	return s.Value.of(s.Left.Capacity)
}

// States returns every threshold in the order in which they are relieved, and then those that are
// ignored.
func (m *Manager) States() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []State
	for _, l := range []*loop{m.processes, m.disks} {
		for _, t := range l.thresholds {
			out = append(out, State{Threshold: t, Left: m.last[t.Signal], Since: m.past.Since[t.key()]})
		}
	}
	for _, t := range m.ignored {
		out = append(out, State{Threshold: t, Ignored: true})
	}
	return out
}
