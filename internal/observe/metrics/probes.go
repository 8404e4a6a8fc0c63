package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"

	"berth/internal/observe/prober"
)

// The metrics of /metrics/probes.
var (
	probeTotal = desc("prober_probe_total", "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
		"probe_type", "result", "container", "pod", "namespace", "pod_uid")
	probeTime = desc("prober_probe_duration_seconds", "[ALPHA] Duration in seconds for a probe response.", "probe_type", "container", "pod", "namespace")
)

// Probes collects /metrics/probes from the counts of present probes, so that deleted pods leave no
// series.
type Probes func() []prober.Count

// Describe implements prometheus.Collector.
func (Probes) Describe(ch chan<- *prometheus.Desc) {
	ch <- probeTotal
	ch <- probeTime
}

// Collect reads the counts. Results that never occurred are left out.
func (p Probes) Collect(ch chan<- prometheus.Metric) {
	type series struct{ kind, container, pod, namespace string }
	seen := map[series]bool{}
	for _, c := range p() {
		for _, r := range []struct {
			result string
			count  uint64
		}{{"successful", c.Successful}, {"failed", c.Failed}, {"unknown", c.Unknown}} {
			if r.count > 0 {
				ch <- prometheus.MustNewConstMetric(probeTotal, counter, float64(r.count), c.Kind, r.result, c.Container, c.Pod.Name, c.Pod.Namespace, string(c.Pod.UID))
			}
		}
		// Durations have no UID: there may be two incarnations of a name, one of which is
		// terminating.
		s := series{c.Kind, c.Container, c.Pod.Name, c.Pod.Namespace}
		if seen[s] {
			continue
		}
		seen[s] = true
		buckets := make(map[float64]uint64, len(c.Buckets))
		for i, n := range c.Buckets {
			buckets[prober.DurationBuckets[i]] = n
		}
		ch <- prometheus.MustNewConstHistogram(probeTime, c.Successful+c.Failed+c.Unknown, c.Seconds, buckets, s.kind, s.container, s.pod, s.namespace)
	}
}

// ProcessStart exposes the start time of this process, from the directory of /proc, without the
// other process metrics of client_golang.
type ProcessStart string

var processStart = desc("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")

// Describe implements prometheus.Collector.
func (ProcessStart) Describe(ch chan<- *prometheus.Desc) { ch <- processStart }

// Collect reads the time; there is no sample if /proc does not have it.
func (p ProcessStart) Collect(ch chan<- prometheus.Metric) {
	began, err := startTime(string(p))
	if err == nil {
		ch <- prometheus.MustNewConstMetric(processStart, gauge, began)
	}
}

func startTime(proc string) (float64, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return 0, err
	}
	self, err := fs.Self()
	if err != nil {
		return 0, err
	}
	stat, err := self.Stat()
	if err != nil {
		return 0, err
	}
	return stat.StartTime()
}
