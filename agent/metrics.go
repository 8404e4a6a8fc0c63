package agent

import (
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"berth/internal/api/server"
	"berth/internal/host/cgroupstat"
	"berth/internal/observe/metrics"
	"berth/internal/observe/pleg"
	"berth/internal/observe/podview"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/storage/volumes"
)

var _ metrics.Readings = (*stats.Collector)(nil)

// newPodCounts creates the pod metrics.
func newPodCounts(g *dependencies, p *pleg.PLEG, v podview.View) *metrics.Pods {
	changed, _ := g.stores.status.Subscribe() // for the agent's lifetime
	return metrics.NewPods(metrics.PodsConfig{
		Changed: changed, Pod: v.Get, List: v.List, Wanted: g.stores.pods.List, Observed: p.Known, Started: g.started, Metrics: g.out.Metrics, Timeline: g.journal.TimelineOf,
		Lifecycles: g.stores.states.List,
	})
}

// newMetrics creates the Prometheus handlers. Each path has its own registry, because some names
// occur in two of them.
func newMetrics(a *Agent) (map[string]http.Handler, error) {
	build := buildOf(a)
	version := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_cgroup_version", Help: "[ALPHA] cgroup version on the hosts."}, func() float64 {
		h, err := cgroupstat.Detect()
		if err != nil {
			return 0
		}
		return float64(h.Version)
	})
	kills := func(id string) uint64 { return a.observation.kills.Count(pod.ContainerID(id)) }
	read := machineReader(&a.deps.base)
	hierarchy := sync.OnceValues(cgroupstat.Detect)
	files := func(cgroup string) (stats.Files, bool) {
		h, err := hierarchy()
		if err != nil {
			return stats.Files{}, false
		}
		return stats.ReadFiles("/proc", h.Processes(cgroup))
	}
	disks := func() ([]stats.Disk, error) { return stats.ReadDisks("/proc") }
	topology := sync.OnceValue(func() stats.Topology { return stats.ReadTopology("/sys/devices/system/cpu") })
	machine := func() (metrics.Machine, error) {
		m, err := read()
		return metrics.Machine{
			ID: m.MachineID, SystemUUID: m.SystemUUID, BootID: m.BootID, CPUs: m.CPUs, Topology: topology(), Memory: m.Memory, Swap: m.Swap, Kernel: m.Kernel, OSImage: m.OSImage,
		}, err
	}
	// Other components register here, too.
	shared := map[string]Registry{server.PathMetrics: a.deps.out.Metrics, server.PathSLIs: a.deps.out.SLIs}
	out := map[string]http.Handler{}
	for path, list := range map[string][]prometheus.Collector{
		server.PathMetrics: {
			a.usage.podMetrics, build, version,
			volumes.Totals{Volumes: a.storage.volumes, Wanted: a.usage.view.List},
			metrics.Claims{Uses: a.usage.stats.Claims},
			metrics.Logs(a.usage.stats.Logs),
			collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		},
		server.PathSLIs:     nil, // the server counts health checks
		server.PathProbes:   {metrics.Probes(a.lifecycle.probes.Counts), metrics.ProcessStart("/proc")},
		server.PathResource: {metrics.Resource{Readings: a.usage.stats, Log: a.deps.cfg.Log, Hidden: a.deps.settings.hiddenMetrics}},
		server.PathCadvisor: {metrics.Cadvisor{Readings: a.usage.stats, Kills: kills, Files: files, Disks: disks, Machine: machine, Log: a.deps.cfg.Log}},
	} {
		r := shared[path]
		if r == nil {
			r = prometheus.NewRegistry()
		}
		for _, c := range list {
			if err := r.Register(c); err != nil {
				return nil, err
			}
		}
		out[path] = metrics.Handler(r, a.deps.cfg.Log)
	}
	return out, nil
}

// buildOf returns the build information; a build without version control has no revision.
func buildOf(a *Agent) metrics.Build {
	b := metrics.Build{Node: a.deps.cfg.NodeName, Version: a.deps.cfg.Version}
	if a.deps.cfg.Kubelet != nil {
		b.Gates = a.deps.cfg.Kubelet.Gates()
	}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			b.TreeState = map[string]string{"true": "dirty", "false": "clean"}[s.Value]
		}
	}
	return b
}
