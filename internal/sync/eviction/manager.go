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

// fileVersion is the version of the state file's format.
const fileVersion = 1

// Readings reads the current usage of the machine. It does not cache.
type Readings interface {
	Use(ctx context.Context) (stats.Use, error)
	PodUses(ctx context.Context) (map[pod.UID]stats.PodUse, error)
	// Places returns the runtime's file paths.
	Places(ctx context.Context) (stats.Places, error)
	FileSystem(path string) (stats.FileSystem, error)
}

// Garbage frees disk space without an eviction.
type Garbage interface {
	// RemoveDead removes exited containers, also those of pods that have failed or succeeded.
	RemoveDead(ctx context.Context) error
	// RemoveUnused removes unused images and returns the freed bytes.
	RemoveUnused(ctx context.Context) (uint64, error)
}

// Kernel notifies when memory runs short.
type Kernel interface {
	Wake() <-chan struct{}
	// Arm sets how many bytes the machine, and all pods together, may use before Wake fires;
	// math.MaxInt64 disables it. It does not block.
	Arm(machine, pods int64)
	// Coverage returns which memory usage Wake covers; the rest is polled.
	Coverage() pressure.Coverage
	// Hold prevents the pod, which is about to terminate, from using more memory, if the kernel
	// supports that.
	Hold(uid pod.UID) error
}

// Config holds the dependencies of a Manager. Its functions do not block.
type Config struct {
	*Evictor
	// Thresholds are those of the configuration; none: nothing is evicted.
	Thresholds []Threshold
	// Transition is how long a condition lasts after the last threshold was met
	// (evictionPressureTransitionPeriod).
	Transition time.Duration
	// MaxGrace limits the grace period of evictions by soft thresholds, in seconds.
	MaxGrace int64
	// Pressures receives the conditions; Changed is called when one begins or ends.
	Pressures *Pressures
	Changed   func()
	Readings  Readings
	Garbage   Garbage
	Kernel    Kernel // nil: no kernel notifications
	// Pods returns the desired pods, Allocated a pod with its allocation, Observed its newest
	// observed state, and Lifecycle its lifecycle.
	Pods      func() []*v1.Pod
	Allocated func(p *v1.Pod) *v1.Pod
	Observed  func(uid pod.UID) (*pod.Status, bool)
	Lifecycle func(uid pod.UID) (pod.Lifecycle, bool)
	// Ended reports whether the pod has failed or succeeded.
	Ended   func(uid pod.UID) bool
	Storage Storage
	// Ready is closed when all running pods are known; before that, no pod is evicted.
	Ready <-chan struct{}
	// Path is the state file of thresholds; "": the state is not persisted.
	Path string
}

// Manager is evictionManager: it monitors available memory, tasks and disk space, and evicts pods
// before they run out.
type Manager struct {
	Config
	file *checkpoint.WarmFile[past]
	// processes handles memory and tasks, disks handles disks: measuring files does not delay
	// memory.
	processes, disks *loop
	ignored          []Threshold
	loaded           chan struct{} // closed by Load

	mu   sync.Mutex
	past past                   // guarded by mu; of both loops
	last map[Signal]Observation // guarded by mu; the last reading
	// hurried are evicted pods whose grace period is at most that of a hard threshold; guarded by
	// mu.
	hurried map[pod.UID]bool
}

// Observation is the available amount of a signal at its last reading.
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

// Load reads the state of an earlier agent. A condition that it saw lasts, as if it was seen now,
// until a reading changes it.
func (m *Manager) Load() error {
	defer close(m.loaded)
	for i := range m.ignored {
		m.Log.Error("a threshold is ignored: that of the file system of writable layers is the one of nodefs or imagefs, whichever that is; set these", "threshold", m.ignored[i].String())
	}
	p, err := m.file.Load()
	now := time.Now()
	kept := map[v1.NodeConditionType]time.Time{} // of conditions that still have a threshold
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

// Health returns a failure to persist the state, with its start time, or nil.
func (m *Manager) Health() error { return m.file.Writer.Health() }

// Run evicts pods until ctx is done, once Load has returned.
func (m *Manager) Run(ctx context.Context) error {
	for _, ready := range []<-chan struct{}{m.loaded, m.Ready} {
		select {
		case <-ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var loops sync.WaitGroup
	loops.Go(func() { _ = m.file.Writer.Run(ctx) })
	for _, l := range []*loop{m.processes, m.disks} {
		if len(l.thresholds) > 0 {
			loops.Go(func() { l.run(ctx) })
		}
	}
	loops.Wait()
	<-ctx.Done()
	return ctx.Err()
}

// judge compares a loop's reading with its thresholds, and stores and publishes the result.
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

// describeMet describes thresholds that are met, with the available amounts.
func describeMet(of []met) []string {
	var out []string
	for i := range of {
		out = append(out, fmt.Sprintf("%s, available: %s", of[i].Threshold.String(), quantity(of[i].Signal.resource(), of[i].amount.Available)))
	}
	return out
}

// only returns the part of the state that belongs to the loop.
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

// with returns the state with the loop's part replaced. It drops thresholds that no longer exist.
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

// equal compares the states, ignoring when conditions were last seen.
func (p past) equal(o past) bool {
	sameTime := func(a, b time.Time) bool { return a.Equal(b) }
	anyTime := func(_, _ time.Time) bool { return true }
	return maps.EqualFunc(p.Since, o.Since, sameTime) && maps.Equal(p.Due, o.Due) && maps.EqualFunc(p.Seen, o.Seen, anyTime)
}

// State is a threshold with its current state.
type State struct {
	Threshold
	// Left is the available amount at the last reading; its Capacity is 0 before the first one, and
	// if it is unreadable.
	Left Observation
	// Since is when the threshold began to be met; zero: it is not met.
	Since time.Time
	// Ignored: it is configured but has no effect.
	Ignored bool
}

// Least is the amount that must be available; 0 if the capacity is unknown.
func (s *State) Least() uint64 {
	if s.Left.Capacity == 0 {
		return 0
	}
	return s.Value.of(s.Left.Capacity)
}

// States returns every threshold in the order of relief, followed by the ignored ones.
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
