package eviction

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/pressure"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
)

const mi = 1 << 20

// machine is one with pods that runs short, over which a Manager looks.
type machine struct {
	*story
	dir     string
	states  *pod.States
	journal *journal.Journal
	metrics *prometheus.Registry
	manager *Manager
	total   map[Signal]uint64
	kernel  *fakeKernel // nil: there is none

	mu      sync.Mutex
	log     strings.Builder              // guarded by mu
	pods    []*v1.Pod                    // guarded by mu
	has     map[Signal]uint64            // guarded by mu; of 1000 Mi, 1000 Mi or 1000; without pods
	takes   map[Signal]map[string]uint64 // guarded by mu; by the names of pods, until they have ended
	garbage map[string]uint64            // guarded by mu; bytes of a disk that can be freed: "containers", "images"
	caches  uint64                       // of files, in what is left of memory; only with a kernel
	devices map[string]uint64            // guarded by mu; by the paths of file systems
	fails   map[string]error             // guarded by mu; what cannot be read
	reads   map[string]int               // guarded by mu
	slow    map[string]time.Duration     // how long something takes; of a pod: its end
	hangs   map[string]bool              // pods that do not end
	heeds   map[string]time.Duration     // how long the end of a pod takes when it has no more than the grace of a hard threshold
	waiting map[string][]chan<- struct{} // guarded by mu; who waits for the end of a pod
	leaves  time.Duration                // from the end of a pod's containers until it is gone
}

// newMachine returns a machine with plenty of all. change may change what its Manager is told.
func newMachine(t *testing.T, thresholds map[Signal]string, change func(m *machine, cfg *Config)) *machine {
	has := map[Signal]uint64{MemoryAvailable: 1000 * mi, AllocatableMemoryAvailable: 1000 * mi, PIDAvailable: 1000, NodeFsAvailable: 1000 * mi, NodeFsInodesFree: 1000, ImageFsAvailable: 1000 * mi}
	m := &machine{
		story: newStory(t), dir: t.TempDir(), states: pod.NewStates(), journal: journal.New(slog.New(slog.DiscardHandler)),
		has: maps.Clone(has), total: has,
		takes: map[Signal]map[string]uint64{}, garbage: map[string]uint64{}, devices: map[string]uint64{"/node": 1, "/images": 1, "/layers": 1},
		fails: map[string]error{}, reads: map[string]int{}, slow: map[string]time.Duration{}, hangs: map[string]bool{}, heeds: map[string]time.Duration{}, waiting: map[string][]chan<- struct{}{},
	}
	m.start(thresholdsOf(t, thresholds), change)
	return m
}

// start makes the Manager, as an agent that starts does.
func (m *machine) start(thresholds []Threshold, change func(m *machine, cfg *Config)) {
	m.metrics = prometheus.NewRegistry()
	ready := make(chan struct{})
	close(ready)
	cfg := Config{
		Evictor: NewEvictor(EvictorConfig{
			Killer: m, Events: m, IsCritical: pod.HasCriticalPriority, Metrics: m.metrics, Journal: m.journal, Log: slog.New(slog.NewTextHandler(m, nil)),
		}),
		Thresholds: thresholds, Transition: 5 * time.Minute, Pressures: NewPressures(), Changed: func() {}, Readings: m, Garbage: m,
		Pods: m.list, Allocated: func(p *v1.Pod) *v1.Pod { return p }, Observed: func(uid pod.UID) (*pod.Status, bool) { return &pod.Status{UID: uid}, true },
		Lifecycle: m.states.Get, Storage: m, Ready: ready, Path: filepath.Join(m.dir, "thresholds.json"),
		Ended: func(pod.UID) bool { return false },
	}
	if change != nil {
		change(m, &cfg)
	}
	m.manager = New(cfg)
}

// run runs the Manager until stop is called, or until the test ends.
func (m *machine) run() (stop func()) {
	if err := m.manager.Load(); err != nil {
		m.t.Error(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.manager.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			m.t.Errorf("Run: %v", err)
		}
	})
	m.t.Cleanup(stop)
	return stop
}

func short(t *testing.T, thresholds map[Signal]string, f func(t *testing.T, m *machine)) {
	synctest.Test(t, func(t *testing.T) { f(t, newMachine(t, thresholds, nil)) })
}

// Write takes what is logged.
func (m *machine) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.Write(b)
}

// logged counts lines of the log with that text.
func (m *machine) logged(text string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Count(m.log.String(), text)
}

// change changes the machine.
func (m *machine) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// add adds a pod that runs and takes so much.
func (m *machine) add(name string, s Signal, takes uint64) *v1.Pod {
	p := named(name)
	p.Spec.Containers = []v1.Container{{Name: "c"}}
	m.change(func() {
		m.pods = append(m.pods, p)
		if m.takes[s] == nil {
			m.takes[s] = map[string]uint64{}
		}
		m.takes[s][name] = takes
	})
	m.states.Set(p.UID, pod.Lifecycle{State: pod.Waiting})
	m.states.Set(p.UID, pod.Lifecycle{State: pod.Syncing})
	return p
}

func (m *machine) list() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods)
}

// readLocked counts a reading.
func (m *machine) readLocked(what string) error {
	m.reads[what]++
	return m.fails[what]
}

func (m *machine) count(what string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads[what]
}

// roomLocked is what is left of a signal.
func (m *machine) roomLocked(s Signal) stats.Amount {
	left := m.has[s]
	for _, n := range m.takes[s] {
		left -= min(n, left)
	}
	if s == NodeFsAvailable {
		for _, n := range m.garbage {
			left -= min(n, left)
		}
	}
	return stats.Amount{Available: left, Capacity: m.total[s]}
}

func (m *machine) Use(context.Context) (stats.Use, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := stats.Use{Time: time.Now(), Memory: m.roomLocked(MemoryAvailable), Tasks: m.roomLocked(PIDAvailable), PodsMemory: m.roomLocked(AllocatableMemoryAvailable)}
	if m.kernel != nil {
		u.Free, u.PodsFree = u.Memory.Available-min(m.caches, u.Memory.Available), u.PodsMemory.Available
	}
	return u, m.readLocked("use")
}

func (m *machine) PodUses(context.Context) (map[pod.UID]stats.PodUse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[pod.UID]stats.PodUse{}
	for _, p := range m.pods {
		memory := m.takes[MemoryAvailable][p.Name]
		out[p.UID] = stats.PodUse{Memory: memory, Tasks: m.takes[PIDAvailable][p.Name], Containers: map[string]uint64{"c": memory}}
	}
	return out, m.readLocked("pods")
}

func (m *machine) Places(context.Context) (stats.Places, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return stats.Places{Node: "/node", Images: "/images", Containers: "/layers"}, m.readLocked("places")
}

func (m *machine) FileSystem(path string) (stats.FileSystem, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	space, inodes := m.roomLocked(NodeFsAvailable), m.roomLocked(NodeFsInodesFree)
	if m.devices[path] != 1 {
		space, inodes = m.roomLocked(ImageFsAvailable), stats.Amount{}
	}
	return stats.FileSystem{Device: m.devices[path], Space: space, Inodes: inodes}, m.readLocked(path)
}

func (m *machine) RemoveDead(context.Context) error { return m.remove("containers") }

func (m *machine) RemoveUnused(context.Context) (uint64, error) {
	m.mu.Lock()
	freed := m.garbage["images"]
	m.mu.Unlock()
	return freed, m.remove("images")
}

func (m *machine) remove(what string) error {
	m.tell("remove %s", what)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.garbage, what)
	return m.readLocked(what)
}

func (m *machine) Local(ctx context.Context, p *v1.Pod, _ *pod.Status, _ stats.Extent) (stats.Local, error) {
	m.mu.Lock()
	used := stats.Size{Bytes: m.takes[NodeFsAvailable][p.Name], Inodes: m.takes[NodeFsInodesFree][p.Name]}
	err := m.readLocked("walk")
	m.mu.Unlock()
	select {
	case <-time.After(m.slow["walk"]):
	case <-ctx.Done():
		err = ctx.Err()
	}
	return stats.Local{Containers: map[string]stats.ContainerFiles{"c": {Rootfs: used}}}, err
}

func (m *machine) AnnotatedEvent(p *v1.Pod, annotations map[string]string, kind, reason, message string) {
	messagestest.SawEvent(reason, message)
	m.tell("%s: %s %s %s", p.Name, kind, reason, annotations[starvedResource])
}

func (m *machine) NodeEvent(kind, reason, message string) {
	messagestest.SawEvent(reason, message)
	m.tell("node: %s %s %s", kind, reason, message)
}

func (m *machine) EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{}) {
	var s v1.PodStatus
	if status != nil {
		status(&s)
		messagestest.SawStatus(&s)
		m.tell("%s: evicted within %d s: %s %s %s", p.Name, grace, s.Phase, s.Reason, s.Conditions[0].Reason)
	} else {
		m.tell("%s: to end within %d s", p.Name, grace)
	}
	m.states.Set(p.UID, pod.Lifecycle{State: pod.Terminating, Evicted: true})
	m.change(func() { m.waiting[p.Name] = append(m.waiting[p.Name], done) })
	if m.hangs[p.Name] {
		return
	}
	takes := m.slow[p.Name]
	if hurried, ok := m.heeds[p.Name]; ok && grace <= hardGrace {
		takes = hurried
	}
	time.AfterFunc(takes, func() { m.end(p) })
}

// end ends the pod, unless it has ended.
func (m *machine) end(p *v1.Pod) {
	var waiting []chan<- struct{}
	m.change(func() { waiting, m.waiting[p.Name] = m.waiting[p.Name], nil })
	if waiting == nil {
		return
	}
	gone := func() {
		m.change(func() {
			for _, takes := range m.takes {
				delete(takes, p.Name)
			}
		})
		m.tell("%s: gone", p.Name)
		m.states.Set(p.UID, pod.Lifecycle{State: pod.Finished, Evicted: true})
	}
	m.states.Set(p.UID, pod.Lifecycle{State: pod.Terminated, Evicted: true})
	if m.leaves == 0 {
		gone()
	} else {
		time.AfterFunc(m.leaves, gone)
	}
	for _, done := range waiting {
		close(done)
	}
}

// fakeKernel wakes when a test says so.
type fakeKernel struct {
	*story
	wake   chan struct{}
	blind  atomic.Bool // it does not watch
	pods   atomic.Bool // it watches pods alone
	stalls atomic.Bool // it reports tasks that wait for memory
}

func (k *fakeKernel) Wake() <-chan struct{} { return k.wake }

func (k *fakeKernel) Coverage() pressure.Coverage {
	return pressure.Coverage{Pods: !k.blind.Load(), Others: !k.blind.Load() && !k.pods.Load(), Stalls: k.stalls.Load()}
}

func (k *fakeKernel) Arm(machine, pods int64) { k.tell("armed at %d, %d", machine, pods) }

// Hold reclaims for a moment, as the kernel does. The pod is asked to end meanwhile.
func (k *fakeKernel) Hold(uid pod.UID) error {
	time.Sleep(time.Microsecond)
	k.tell("%s: held", uid)
	return nil
}

// withKernel gives the machine a kernel that wakes.
func withKernel(m *machine, cfg *Config) {
	m.kernel = &fakeKernel{story: m.story, wake: make(chan struct{}, 1)}
	cfg.Kernel = m.kernel
}
