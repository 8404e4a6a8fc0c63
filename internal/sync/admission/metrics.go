package admission

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/lifecycle"
)

type metrics struct{ rejections, preemptions, deferredAccepted *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		rejections: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_admission_rejections_total",
			Help: "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
		}, []string{"reason"}),
		preemptions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_preemptions", Help: "[ALPHA] Cumulative number of pod preemptions by preemption resource",
		}, []string{"preemption_signal"}),
		deferredAccepted: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_deferred_accepted_resizes_total",
			Help: "[ALPHA] Cumulative number of resizes that were accepted after being deferred.",
		}, []string{"retry_trigger"}),
	}
}

// rejectionReasons limits the label's values: other reasons may contain user input.
var rejectionReasons = map[string]bool{
	"OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true, "OutOfpods": true, "NodeAffinity": true, "TaintToleration": true,
	"AppArmor": true, "SysctlForbidden": true, "UnexpectedAdmissionError": true, "TopologyAffinityError": true, "PodOSNotSupported": true,
	"PodOSSelectorNodeLabelDoesNotMatch": true, "InvalidNodeInfo": true, "InitContainerRestartPolicyForbidden": true, "PodFeatureUnsupported": true,
	"PodLevelResourcesNotAdmittedReason": true, "SupplementalGroupsPolicyNotSupported": true, "UnsupportedFeature": true, lifecycle.Evicted: true, "NodeShutdown": true,
}

func (m *metrics) rejected(reason string) {
	if !rejectionReasons[reason] {
		reason = "Other"
	}
	m.rejections.WithLabelValues(reason).Inc()
}

// preemptionSignals limits the label's values; pods are preempted for extended resources, too.
var preemptionSignals = map[v1.ResourceName]bool{v1.ResourceCPU: true, v1.ResourceMemory: true, v1.ResourcePods: true, v1.ResourceEphemeralStorage: true}

// preempted counts a resource that pods were preempted for.
func (m *metrics) preempted(name v1.ResourceName) {
	if !preemptionSignals[name] {
		name = "other"
	}
	m.preemptions.WithLabelValues(string(name)).Inc()
}
