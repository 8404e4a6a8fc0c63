package agent

import (
	"net/http"
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"berth/internal/certs"
	"berth/internal/cgroupstat"
	"berth/internal/metrics"
	"berth/internal/node"
	"berth/internal/pod"
	"berth/internal/server"
	"berth/internal/stats"
	"berth/internal/status"
)

var _ metrics.Readings = (*stats.Collector)(nil)

// measures is what the agent counts about itself.
type measures struct {
	lives *metrics.Pods
	// These are shown, too, where there is nothing for them to count.
	clientCert, servingCert *certs.Metrics
	statuses                *status.Metrics
}

func newMeasures(r prometheus.Registerer) measures {
	return measures{
		clientCert: certs.ClientMetrics(r), servingCert: certs.ServingMetrics(r), statuses: status.NewMetrics(r),
	}
}

// newMetrics builds what Prometheus scrapes, each path with a registry of its own: names may be in two of them.
func (a *Agent) newMetrics() (map[string]http.Handler, error) {
	changed, _ := a.status.Subscribe() // for as long as there is an agent
	a.lives = metrics.NewPods(metrics.PodsConfig{
		Changed: changed, Pod: a.getPod, List: a.listPods, Wanted: a.pods.List, Observed: a.pleg.Known, Started: a.started, Metrics: a.out.Metrics,
		Lives: a.states.List, Mirrored: a.member != nil && a.member.api != nil,
	})
	build := metrics.Build{Node: a.cfg.NodeName, Version: a.cfg.Version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	version := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_cgroup_version", Help: "[ALPHA] cgroup version on the hosts."}, func() float64 {
		h, err := cgroupstat.Detect()
		if err != nil {
			return 0
		}
		return float64(h.Version)
	})
	kills := func(id string) uint64 {
		if a.kills == nil {
			return 0
		}
		return a.kills.Count(pod.ContainerID(id))
	}
	read := a.out.Machine
	if read == nil {
		read = node.Host{Root: "/", Dir: a.cfg.RootDir}.Read
	}
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
	// Others register there, too.
	shared := map[string]Registry{server.PathMetrics: a.out.Metrics, server.PathSLIs: a.out.SLIs}
	out := map[string]http.Handler{}
	for path, list := range map[string][]prometheus.Collector{
		server.PathMetrics: {
			a.lives, build, version,
			metrics.Claims{Uses: a.stats.Claims},
			metrics.Logs(a.stats.Logs),
			collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		},
		server.PathSLIs:     nil, // the server counts health checks
		server.PathProbes:   {metrics.Probes(a.probes.Counts), metrics.ProcessStart("/proc")},
		server.PathResource: {metrics.Resource{Readings: a.stats, Log: a.cfg.Log}},
		server.PathCadvisor: {metrics.Cadvisor{Readings: a.stats, Kills: kills, Files: files, Disks: disks, Machine: machine, Log: a.cfg.Log}},
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
		out[path] = metrics.Handler(r, a.cfg.Log)
	}
	return out, nil
}
