package agent

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/cluster/node"
	"berth/internal/host/pressure"
	"berth/internal/observe/pleg"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/runtime/images"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/sync/eviction"
	"berth/internal/sync/podworkers"
)

// thresholdsFile stores the state of eviction thresholds across restarts.
const thresholdsFile = "thresholds.json"

// killer evicts pods.
type killer struct{ workers *podworkers.PodWorkers }

// EvictPod evicts a pod with this grace period, in seconds.
func (k killer) EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{}) {
	k.workers.UpdatePod(podworkers.UpdatePodOptions{
		UpdateType: podworkers.SyncPodKill, Pod: p,
		KillPodOptions: &podworkers.KillPodOptions{
			Evict: podworkers.Evicted, PodTerminationGracePeriodSecondsOverride: &grace, PodStatusFunc: status, CompletedCh: done,
		},
	})
}

// garbage is the disk space that can be reclaimed without evicting pods.
type garbage struct {
	containers *kuberuntime.Runtime
	images     *images.Collector
}

// RemoveDead removes exited containers.
func (g garbage) RemoveDead(ctx context.Context) error { return g.containers.RemoveDead(ctx) }

// RemoveUnused removes unused images.
func (g garbage) RemoveUnused(ctx context.Context) (uint64, error) { return g.images.RemoveUnused(ctx) }

// kernel wakes eviction, and limits the memory of pods that are being evicted.
type kernel struct {
	*pressure.Watch
	cgroup func(uid pod.UID) string
}

// Hold prevents the pod from allocating more memory.
func (k kernel) Hold(uid pod.UID) error { return k.Watch.Hold(k.cgroup(uid)) }

// evictions evicts pods under memory, PID or disk pressure.
type evictions struct {
	eviction *eviction.Manager
	// memory gets the kernel's pressure notifications; nil if the readings are replaced.
	memory *pressure.Watch
	// limits enforces the pods' ephemeral storage limits.
	limits *eviction.LocalLimits
}

// evictionInputs are the dependencies of evictions.
type evictionInputs struct {
	life       *podLife
	pleg       *pleg.PLEG
	stats      *stats.Collector
	garbage    garbage
	podsCgroup func() string
	podCgroup  func(uid pod.UID) string
}

func newEvictions(g *dependencies, in evictionInputs, pressureChanged func()) evictions {
	e := eviction.NewEvictor(eviction.EvictorConfig{
		Killer: killer{in.life.workers}, Events: g.recorder, IsCritical: g.settings.isCritical,
		Metrics: g.out.Metrics, Journal: g.journal, Log: g.cfg.Log,
	})
	c := eviction.Config{
		Evictor: e, Thresholds: g.settings.eviction.thresholds, Transition: g.settings.eviction.transition, MaxGrace: g.settings.eviction.maxGrace,
		Pressures: g.stores.pressures, Changed: pressureChanged, Garbage: in.garbage,
		Pods: g.stores.pods.List, Allocated: in.life.allocations.Apply, Observed: in.pleg.Newest, Lifecycle: g.stores.states.Get, Ended: g.stores.hasEnded,
		Storage: in.stats, Ready: in.pleg.Relisted(), Path: g.cfg.inRoot(thresholdsFile),
	}
	var memory *pressure.Watch
	if c.Readings = g.out.Readings; c.Readings == nil {
		memory = pressure.New(pressure.Config{Pods: in.podsCgroup, Log: g.cfg.Log})
		c.Readings, c.Kernel = in.stats, kernel{memory, in.podCgroup}
	}
	return evictions{
		memory:   memory,
		eviction: eviction.New(c),
		limits: eviction.NewLocalLimits(eviction.LimitsConfig{
			Evictor: e, Lifecycles: g.stores.states, Pod: g.stores.pods.Get, Allocated: in.life.allocations.Apply, Observed: in.pleg.Newest, Ended: g.stores.hasEnded,
			Storage: in.stats, Space: in.stats.ReadSpace,
		}),
	}
}

// thresholds returns the state of each eviction threshold.
func thresholds(m *eviction.Manager) []server.Threshold {
	out := []server.Threshold{} // an empty list, not null
	for _, s := range m.States() {
		t := server.Threshold{
			Signal: string(s.Threshold.Signal), Value: s.Threshold.Value.String(), GraceSeconds: s.Threshold.Grace.Seconds(),
			Least: s.Least(), Available: s.Left.Available, Capacity: s.Left.Capacity, Ignored: s.Ignored,
		}
		if !s.Since.IsZero() {
			t.MetSince = &s.Since
		}
		out = append(out, t)
	}
	return out
}

// loadThresholds loads the persisted state of thresholds.
func loadThresholds(m *eviction.Manager, log *slog.Logger) {
	if err := m.Load(); err != nil {
		log.Warn("state of thresholds not read", "error", err)
	}
}

// nodePressure returns the pressure conditions for the Node.
func (s *stateStores) nodePressure() node.Pressure {
	p := s.pressures
	return node.Pressure{Memory: p.Has(v1.NodeMemoryPressure), Disk: p.Has(v1.NodeDiskPressure), PID: p.Has(v1.NodePIDPressure)}
}
