package pressure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// Config configures a Watch.
type Config struct {
	// Proc is the mount point of proc, Cgroups that of the cgroup hierarchies; "" means the usual
	// path.
	Proc, Cgroups string
	// Pods returns the path of the cgroup of all pods from the root of its hierarchy: "/kubepods".
	// "" means none.
	Pods func() string
	Log  *slog.Logger
}

// Watch reports that the machine's memory may be short.
type Watch struct {
	cfg      Config
	wake     chan struct{}
	notified chan struct{}
	eventFD  eventFD
	// watching is false before the first threshold is set and after monitoring has failed; stalls
	// is whether pressure stall information is one of the notifications.
	watching, stalls atomic.Bool

	mu   sync.Mutex
	left *distances // guarded by mu; nil: taken, or never set
}

// distances are the bytes that may be allocated before a threshold is crossed, of the machine and
// of the pods; none means no threshold.
type distances struct{ machine, pods int64 }

// none is a number larger than any usage.
const none = math.MaxInt64

// New returns a Watch. It reports nothing before Run and Arm are called.
func New(cfg Config) *Watch {
	cfg.Proc, cfg.Cgroups = cmp.Or(cfg.Proc, "/proc"), cmp.Or(cfg.Cgroups, "/sys/fs/cgroup")
	return &Watch{cfg: cfg, wake: make(chan struct{}, 1), notified: make(chan struct{}, 1), eventFD: eventFD{fd: -1}}
}

// Wake returns a channel with a value when memory may be short. Its capacity is one.
func (w *Watch) Wake() <-chan struct{} { return w.wake }

// Arm sets the distance to the eviction thresholds: the bytes that the machine, and the pods'
// cgroup, may allocate before a threshold is crossed; math.MaxInt64 if there is none. Call it after
// each reading. It does not block.
func (w *Watch) Arm(machine, pods int64) {
	w.mu.Lock()
	w.left = &distances{machine: machine, pods: pods}
	w.mu.Unlock()
	w.eventFD.signal()
	notify(w.notified)
}

// Coverage describes which memory consumption a Watch reports. The rest must be read periodically.
type Coverage struct {
	// Pods: memory that pods allocate, up to the distance of Arm. Others: memory allocated outside
	// of pods, too; cgroup version 2 has no threshold for the machine.
	Pods, Others bool
	// Stalls: tasks that wait for memory to be reclaimed (PSI), for any consumer.
	Stalls bool
}

// Coverage returns the current coverage.
func (w *Watch) Coverage() Coverage {
	watching := w.watching.Load()
	return Coverage{Pods: watching, Others: watching && !w.unified(), Stalls: w.stalls.Load()}
}

// take returns the distances if they were set since the last call.
func (w *Watch) take() (distances, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == nil {
		return distances{}, false
	}
	left := *w.left
	w.left = nil
	return left, true
}

// Run watches until ctx is done. It opens nothing before Arm is called, and closes everything
// before it returns.
func (w *Watch) Run(ctx context.Context) error {
	w.removeOrphan()
	select {
	case <-w.notified:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := w.serve(ctx); err != nil && ctx.Err() == nil {
		w.cfg.Log.Warn("No memory notifications from the kernel, falling back to periodic checks", "error", err)
	}
	<-ctx.Done()
	return ctx.Err()
}

// removeOrphan removes the threshold of an agent that was killed, because Arm may never be called.
func (w *Watch) removeOrphan() {
	if !w.unified() || w.cfg.Pods() == "" {
		return
	}
	h := w.memoryHigh()
	if err := h.acquire(none); err != nil && !isGone(err) && !errors.Is(err, errForeign) {
		w.cfg.Log.Warn("not known whether pods are slowed down by memory.high of an agent that was killed", "cgroup", h.dir, "error", err)
	}
}

func (w *Watch) unified() bool { return exists(filepath.Join(w.cfg.Cgroups, controllersFile)) }

func (w *Watch) memoryHigh() *memoryHigh {
	dir := filepath.Join(w.cfg.Cgroups, w.cfg.Pods())
	return &memoryHigh{dir: dir, attributes: attribute(dir), events: notOpen}
}

func (w *Watch) serve(ctx context.Context) error {
	m := &monitor{thresholds: w.thresholds(), notifications: w.notifications(), eventFD: &w.eventFD, wait: poll, wake: func() { notify(w.wake) }, watching: &w.watching, stalls: &w.stalls, log: w.cfg.Log}
	defer m.close()
	defer w.watching.Store(false)
	defer w.stalls.Store(false)
	if len(m.thresholds)+len(m.notifications) == 0 {
		w.cfg.Log.Info("the kernel does not tell when memory becomes short: it is seen by the clock alone")
		return nil
	}
	if err := w.eventFD.open(); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	defer w.eventFD.close()
	defer context.AfterFunc(ctx, w.eventFD.signal)()
	return m.run(ctx, w.take)
}

// thresholds returns the thresholds that the host's cgroup version supports.
func (w *Watch) thresholds() []*thresholdState {
	var out []*thresholdState
	switch root := filepath.Join(w.cfg.Cgroups, "memory"); {
	case w.unified():
		if w.cfg.Pods() != "" {
			h := w.memoryHigh()
			out = append(out, newThresholdState(h.dir, h))
		}
	case exists(filepath.Join(root, controlFile)):
		out = append(out, newThresholdState(root, &usageThreshold{dir: root, of: ofMachine, event: notOpen}))
		if w.cfg.Pods() != "" {
			dir := filepath.Join(root, w.cfg.Pods())
			out = append(out, newThresholdState(dir, &usageThreshold{dir: dir, of: ofPods, event: notOpen}))
		}
	}
	return out
}

func (w *Watch) notifications() []*notification {
	var out []*notification
	if path := filepath.Join(w.cfg.Proc, "pressure", "memory"); exists(path) {
		out = append(out, &notification{name: path, notifier: &psiNotifier{path: path, fd: notOpen}, psi: true})
	}
	if w.cfg.Pods() != "" && w.unified() {
		path := filepath.Join(w.cfg.Cgroups, w.cfg.Pods(), eventsFile)
		out = append(out, &notification{name: path, notifier: &limitNotifier{path: path, fd: notOpen}})
	}
	return out
}

func ofMachine(d distances) int64 { return d.machine }

func ofPods(d distances) int64 { return d.pods }

// notify sends a value to a channel of capacity one, without blocking.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
