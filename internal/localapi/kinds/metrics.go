package kinds

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// The group metrics.k8s.io is one of readings, not of objects (internal/localapi/usage). What is
// here is what discovery says of it.

// metricsVersion is what the group has.
var metricsVersion = metav1.GroupVersionForDiscovery{
	GroupVersion: metricsv1beta1.SchemeGroupVersion.String(), Version: metricsv1beta1.SchemeGroupVersion.Version,
}

// MetricsGroup describes the group.
func MetricsGroup() *metav1.APIGroup {
	return &metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
		Name:     metricsv1beta1.GroupName, Versions: []metav1.GroupVersionForDiscovery{metricsVersion}, PreferredVersion: metricsVersion,
	}
}

// MetricsResources describes its version.
func MetricsResources() *metav1.APIResourceList {
	verbs := metav1.Verbs{"get", "list"}
	return &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: metricsVersion.GroupVersion,
		APIResources: []metav1.APIResource{
			{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs},
			{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: verbs},
		},
	}
}

// MetricsDiscovery is MetricsResources as aggregated discovery has it.
func MetricsDiscovery() apidiscoveryv2.APIVersionDiscovery {
	d := apidiscoveryv2.APIVersionDiscovery{Version: metricsVersion.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, r := range MetricsResources().APIResources {
		scope := apidiscoveryv2.ScopeCluster
		if r.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		kind := metav1.GroupVersionKind(metricsv1beta1.SchemeGroupVersion.WithKind(r.Kind))
		d.Resources = append(d.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: r.Name, ResponseKind: &kind, Scope: scope, Verbs: r.Verbs})
	}
	return d
}
