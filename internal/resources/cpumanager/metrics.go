package cpumanager

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/utils/cpuset"

	"berth/internal/resources/topologymanager"
)

type metrics struct {
	requests, errors  prometheus.Counter
	shared, exclusive prometheus.Gauge
	perNode           *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer, l *layout) *metrics {
	f := promauto.With(r)
	m := &metrics{
		requests: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_cpu_manager_pinning_requests_total",
			Help: "[ALPHA] The number of cpu core allocations which required pinning.",
		}),
		errors: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_cpu_manager_pinning_errors_total",
			Help: "[ALPHA] The number of cpu core allocations which required pinning failed.",
		}),
		shared: f.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_cpu_manager_shared_pool_size_millicores",
			Help: "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
		}),
		exclusive: f.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_cpu_manager_exclusive_cpu_allocation_count",
			Help: "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
		}),
		perNode: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_cpu_manager_allocation_per_numa", Help: "[ALPHA] Number of CPUs allocated per NUMA node",
		}, []string{"numa_node"}),
	}
	m.set(l, pools{})
	return m
}

func (m *metrics) set(l *layout, p pools) {
	exclusive := p.exclusive()
	m.shared.Set(float64(1000 * p.shared.Size()))
	m.exclusive.Set(float64(exclusive.Size()))
	for _, id := range l.nodes {
		m.perNode.WithLabelValues(strconv.Itoa(id)).Set(float64(exclusive.Intersection(l.inNode[id]).Size()))
	}
}

// Label values of the alignment metrics.
const (
	containerScope = "container"
	physicalCPU    = "physical_cpu"
	uncoreCache    = "uncore_cache"
)

// countAlignment counts an allocation that is aligned as an option requires.
func (m *CPUManager) countAlignment(cpus cpuset.CPUSet) {
	if m.policy.options[fullPhysicalCPUs] {
		m.alignment.Aligned(containerScope, physicalCPU)
	}
	if m.policy.options[alignByUncoreCache] && m.policy.layout.inOneCache(cpus) {
		m.alignment.Aligned(containerScope, uncoreCache)
	}
}

// countMisalignment counts an allocation that was refused because of full-pcpus-only.
func (m *CPUManager) countMisalignment(err error) {
	if refusal := (*topologymanager.Refusal)(nil); errors.As(err, &refusal) {
		m.alignment.Failed(containerScope, physicalCPU)
	}
}
