package metrics

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/host/cgroupstat"
	"berth/internal/observe/stats"
)

// Readings reads the usage.
type Readings interface {
	// Read returns readings that are at most a second old.
	Read(ctx context.Context) (*stats.Readings, error)
}

const scrapeLimit = 10 * time.Second

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	containerLabels = []string{"container", "pod", "namespace"}
	podLabels       = []string{"pod", "namespace"}
)

// The metrics of /metrics/resource (KEP-727).
var (
	nodeCPU             = desc("node_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the node in core-seconds")
	nodeMemory          = desc("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes")
	nodeSwap            = desc("node_swap_usage_bytes", "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems")
	containerCPU        = desc("container_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the container in core-seconds", containerLabels...)
	containerMemory     = desc("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes", containerLabels...)
	containerStart      = desc("container_start_time_seconds", "[STABLE] Start time of the container since unix epoch in seconds", containerLabels...)
	containerSwap       = desc("container_swap_usage_bytes", "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems", containerLabels...)
	containerSwapLimit  = desc("container_swap_limit_bytes", "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems", containerLabels...)
	podCPU              = desc("pod_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", podLabels...)
	podMemory           = desc("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes", podLabels...)
	podSwap             = desc("pod_swap_usage_bytes", "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems", podLabels...)
	hiddenScrapeError   = desc("scrape_error", "[ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container metrics, 0 otherwise")
	resourceScrapeError = desc("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise")
)

// Resource collects /metrics/resource.
type Resource struct {
	Readings Readings
	Log      *slog.Logger
	// Hidden also exposes metrics that the kubelet of this version hides by default.
	Hidden bool
}

// Describe implements prometheus.Collector.
func (r Resource) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		nodeCPU, nodeMemory, nodeSwap, containerCPU, containerMemory, containerStart, containerSwap, containerSwapLimit, podCPU, podMemory, podSwap, resourceScrapeError,
	} {
		ch <- d
	}
	if r.Hidden {
		ch <- hiddenScrapeError
	}
}

// Collect reads the usage. Unknown values have no sample.
func (r Resource) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	all, err := r.Readings.Read(ctx)
	failed := 0.0
	if err != nil {
		failed = 1
		r.Log.Warn("/metrics/resource: use not read", "error", err)
	}
	ch <- prometheus.MustNewConstMetric(resourceScrapeError, prometheus.GaugeValue, failed)
	if r.Hidden {
		ch <- prometheus.MustNewConstMetric(hiddenScrapeError, prometheus.GaugeValue, failed)
	}
	if err != nil {
		return
	}
	send := func(g *stats.Reading, cpu, memory, swap *prometheus.Desc, labels ...string) {
		if g == nil {
			return
		}
		if g.CPU != nil {
			ch <- at(g.Time, prometheus.MustNewConstMetric(cpu, prometheus.CounterValue, seconds(g.CPU.Usage), labels...))
		}
		if g.Memory != nil {
			ch <- at(g.Time, prometheus.MustNewConstMetric(memory, prometheus.GaugeValue, float64(g.Memory.WorkingSet()), labels...))
			ch <- at(g.Time, prometheus.MustNewConstMetric(swap, prometheus.GaugeValue, float64(g.Memory.Swap), labels...))
		}
	}
	send(all.Root, nodeCPU, nodeMemory, nodeSwap)
	for i := range all.Pods {
		p := &all.Pods[i]
		send(p.Reading, podCPU, podMemory, podSwap, p.Name, p.Namespace)
		for j := range p.Containers {
			c := &p.Containers[j]
			labels := []string{c.Name, p.Name, p.Namespace}
			send(c.Reading, containerCPU, containerMemory, containerSwap, labels...)
			if g := c.Reading; g != nil && g.Memory != nil && g.Memory.SwapLimit != cgroupstat.Unlimited {
				ch <- at(g.Time, prometheus.MustNewConstMetric(containerSwapLimit, prometheus.GaugeValue, float64(g.Memory.SwapLimit), labels...))
			}
			ch <- prometheus.MustNewConstMetric(containerStart, prometheus.GaugeValue, float64(c.CreatedAt.UnixMilli())/1000, labels...)
		}
	}
}

// at adds the time of the reading to a sample.
func at(t time.Time, m prometheus.Metric) prometheus.Metric {
	return prometheus.NewMetricWithTimestamp(t, m)
}

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }
