package agent

import (
	"net/http"
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"berth/internal/cgroupstat"
	"berth/internal/metrics"
	"berth/internal/pleg"
	"berth/internal/pod"
	"berth/internal/server"
	"berth/internal/stats"
)

// certificates tells how long those hold that the API server signs.
func (a *Agent) certificates() metrics.Certificates {
	var out metrics.Certificates
	if c := a.api.identity; c != nil {
		out.Client = c.Left
	}
	if c := a.serving.rotation; c != nil {
		out.Server = c.Left
	}
	return out
}

// newPodCounts builds what counts pods by what is reported of them.
func newPodCounts(g *ground, p *pleg.PLEG, v podView) *metrics.Pods {
	changed, _ := g.status.Subscribe() // for as long as there is an agent
	return &metrics.Pods{
		Changed: changed, Pod: v.getPod, List: v.listPods, Wanted: g.pods.List, Observed: p.Known, Started: g.started, Agent: g.counts,
		Lives: g.states.List, Mirrored: g.api.exists(),
	}
}

// newMetrics builds what Prometheus scrapes, each path with a registry of its own: names may be in
// two of them.
func newMetrics(a *Agent) (map[string]http.Handler, error) {
	a.counts.Node(a.cfg.NodeName, a.cfg.Version, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	version := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_cgroup_version", Help: "[ALPHA] cgroup version on the hosts."}, func() float64 {
		h, err := cgroupstat.Detect()
		if err != nil {
			return 0
		}
		return float64(h.Version)
	})
	kills := func(id string) uint64 { return a.kills.Count(pod.ContainerID(id)) }
	read := a.machineReader()
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
	out := map[string]http.Handler{}
	for path, list := range map[string][]prometheus.Collector{
		server.PathMetrics: {
			a.lives, version,
			metrics.Claims{Uses: a.stats.Claims},
			metrics.Logs(a.stats.Logs),
			a.nodeStart, a.certificates(),
			collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		},
		server.PathProbes:   {metrics.Probes(a.probes.Counts), metrics.ProcessStart("/proc")},
		server.PathSLIs:     {a.health},
		server.PathResource: {metrics.Resource{Readings: a.stats, Log: a.cfg.Log}},
		server.PathCadvisor: {metrics.Cadvisor{Readings: a.stats, Kills: kills, Files: files, Disks: disks, Machine: machine, Log: a.cfg.Log}},
	} {
		r := prometheus.NewRegistry()
		for _, c := range list {
			if err := r.Register(c); err != nil {
				return nil, err
			}
		}
		if path == server.PathMetrics {
			if err := a.counts.Register(r); err != nil {
				return nil, err
			}
		}
		out[path] = metrics.Handler(r, a.cfg.Log)
	}
	return out, nil
}
