package eviction

import (
	"context"
	"fmt"
	"log/slog"
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
	Evictor *Evictor
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
	// Thresholds are those of the configuration.
	Thresholds []Threshold

	ignored    []Threshold
	transition time.Duration
	pressures  *Pressures
	log        *slog.Logger
	file       *checkpoint.WarmFile[past]
	// processes handles memory and tasks, disks handles disks: measuring files does not delay
	// memory.
	processes, disks *loop
	ready            <-chan struct{}
	loaded           chan struct{} // closed by Load
}

// Observation is the available amount of a signal at its last reading.
type Observation struct {
	stats.Amount
	At time.Time
}

// New returns a Manager.
func New(cfg Config) *Manager {
	m := &Manager{
		Thresholds: cfg.Thresholds, transition: cfg.Transition, pressures: cfg.Pressures, log: cfg.Evictor.Log, ready: cfg.Ready, loaded: make(chan struct{}),
	}
	m.file = checkpoint.NewFile(checkpoint.FileConfig[past]{
		Path: cfg.Path, Version: fileVersion, What: "thresholds of eviction that are met", Log: m.log, Content: m.past,
	})
	var processThresholds, diskThresholds []Threshold
	for _, t := range cfg.Thresholds {
		if isContainerFs(t) {
			m.ignored = append(m.ignored, t)
		}
	}
	for _, t := range (layout{}).withContainerFs(cfg.Thresholds) {
		if isProcesses(t) {
			processThresholds = append(processThresholds, t)
		} else {
			diskThresholds = append(diskThresholds, t)
		}
	}
	evaluatorOf := func(ts []Threshold, conditions ...v1.NodeConditionType) *evaluator {
		return &evaluator{
			conditions: conditions, transition: cfg.Transition, pressures: cfg.Pressures, changed: cfg.Changed, file: m.file, log: m.log,
			thresholds: ts, last: map[Signal]Observation{},
		}
	}
	pods := &podView{
		list: cfg.Pods, allocated: cfg.Allocated, lifecycle: cfg.Lifecycle, ended: cfg.Ended, isCritical: cfg.Evictor.IsCritical, shortened: map[pod.UID]bool{},
	}
	m.processes = &loop{
		evictor: cfg.Evictor, evaluator: evaluatorOf(processThresholds, v1.NodeMemoryPressure, v1.NodePIDPressure), resources: &processes{readings: cfg.Readings},
		pods: pods, readings: cfg.Readings, maxGrace: cfg.MaxGrace, settle: settleProcesses, quiet: quietProcesses, kernel: noKernel{}, reported: map[string]error{},
	}
	if cfg.Kernel != nil && slices.ContainsFunc(processThresholds, func(t Threshold) bool { return t.Signal.resource() == memory }) {
		m.processes.kernel = cfg.Kernel
	}
	ev := evaluatorOf(diskThresholds, v1.NodeDiskPressure)
	m.disks = &loop{
		evictor: cfg.Evictor, evaluator: ev, pods: pods, readings: cfg.Readings, maxGrace: cfg.MaxGrace, settle: settleDisks, quiet: quietDisks, kernel: noKernel{},
		resources: &disks{evaluator: ev, readings: cfg.Readings, garbage: cfg.Garbage, storage: cfg.Storage, observed: cfg.Observed, log: m.log},
		reported:  map[string]error{},
	}
	return m
}

func (m *Manager) past() past {
	out := newPast()
	for _, l := range []*loop{m.processes, m.disks} {
		part := l.evaluator.current()
		maps.Copy(out.Since, part.Since)
		maps.Copy(out.Due, part.Due)
		maps.Copy(out.Seen, part.Seen)
	}
	return out
}

// Load reads the state of an earlier agent. A condition that it saw lasts, as if it was seen now,
// until a reading changes it.
func (m *Manager) Load() error {
	defer close(m.loaded)
	for i := range m.ignored {
		m.log.Error("a threshold is ignored: that of the file system of writable layers is the one of nodefs or imagefs, whichever that is; set these", "threshold", m.ignored[i].String())
	}
	p, err := m.file.Load()
	now := time.Now()
	seenAt := map[v1.NodeConditionType]time.Time{} // of conditions that still have a threshold
	for _, t := range m.Thresholds {
		c := t.Signal.condition()
		if seen, ok := p.Seen[c]; ok && seenAt[c].IsZero() {
			seenAt[c] = seen
		}
		if _, ok := p.Since[t.key()]; ok {
			seenAt[c] = now
		}
	}
	p.Seen = seenAt
	conditions := map[v1.NodeConditionType]bool{}
	for c, seen := range p.Seen {
		conditions[c] = seen.Add(m.transition).After(now)
	}
	for _, l := range []*loop{m.processes, m.disks} {
		l.evaluator.restore(p)
	}
	m.pressures.set(slices.Collect(maps.Keys(conditions)), conditions)
	if err != nil {
		return fmt.Errorf("resetting the node conditions: %w", err)
	}
	return nil
}

// Health returns a failure to persist the state, with its start time, or nil.
func (m *Manager) Health() error { return m.file.Writer.Health() }

// Run evicts pods until ctx is done, once Load has returned.
func (m *Manager) Run(ctx context.Context) error {
	for _, ready := range []<-chan struct{}{m.loaded, m.ready} {
		select {
		case <-ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var loops sync.WaitGroup
	loops.Go(func() { _ = m.file.Writer.Run(ctx) })
	for _, l := range []*loop{m.processes, m.disks} {
		if len(l.evaluator.thresholds) > 0 {
			loops.Go(func() { l.run(ctx) })
		}
	}
	loops.Wait()
	<-ctx.Done()
	return ctx.Err()
}

// State is a threshold with its current state.
type State struct {
	Threshold Threshold
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
	return s.Threshold.Value.of(s.Left.Capacity)
}

// States returns every threshold in the order of relief, followed by the ignored ones.
func (m *Manager) States() []State {
	out := append(m.processes.evaluator.states(), m.disks.evaluator.states()...)
	for _, t := range m.ignored {
		out = append(out, State{Threshold: t, Ignored: true})
	}
	return out
}
