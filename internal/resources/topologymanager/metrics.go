package topologymanager

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	requests, errors prometheus.Counter
	duration         prometheus.Histogram
	alignment        Alignment
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		requests: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_topology_manager_admission_requests_total",
			Help: "[ALPHA] The number of admission requests where resources have to be aligned.",
		}),
		errors: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_topology_manager_admission_errors_total",
			Help: "[ALPHA] The number of admission request failures where resources could not be aligned.",
		}),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubelet_topology_manager_admission_duration_ms",
			Help:    "[ALPHA] Duration in milliseconds to serve a pod admission request.",
			Buckets: prometheus.ExponentialBuckets(.05, 2, 15),
		}),
		alignment: NewAlignment(r),
	}
}

// Boundaries of an Alignment.
const (
	NUMANode     = "numa_node"
	PhysicalCPU  = "physical_cpu"
	UncoreCache  = "uncore_cache"
	scopeLabel   = "scope"
	boundLabel   = "boundary"
	alignedName  = "kubelet_container_aligned_compute_resources_count"
	notAlignName = "kubelet_container_aligned_compute_resources_failure_count"
)

// Alignment counts allocations of containers or pods that do, or do not, stay within a boundary.
// Its two metrics are shared by several managers.
type Alignment struct{ aligned, failed *prometheus.CounterVec }

// NewAlignment returns the metrics of the registerer, and registers them if necessary. If r is nil,
// they are not registered.
func NewAlignment(r prometheus.Registerer) Alignment {
	return Alignment{
		aligned: shared(r, prometheus.CounterOpts{
			Name: alignedName, Help: "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
		}),
		failed: shared(r, prometheus.CounterOpts{
			Name: notAlignName, Help: "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
		}),
	}
}

func shared(r prometheus.Registerer, o prometheus.CounterOpts) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(o, []string{scopeLabel, boundLabel})
	if r == nil {
		return vec
	}
	err := r.Register(vec)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return there.ExistingCollector.(*prometheus.CounterVec)
	}
	if err != nil {
		panic(err) // as promauto does: the same name with other labels is a programming error
	}
	return vec
}

// Aligned counts an aligned allocation.
func (a Alignment) Aligned(scope, boundary string) { a.aligned.WithLabelValues(scope, boundary).Inc() }

// Failed counts a failure to align an allocation.
func (a Alignment) Failed(scope, boundary string) { a.failed.WithLabelValues(scope, boundary).Inc() }

// count counts the merged hint of the policy single-numa-node.
func (a Alignment) count(merged Hint, scope string) {
	if merged.Preferred {
		a.Aligned(scope, NUMANode)
	} else {
		a.Failed(scope, NUMANode)
	}
}
