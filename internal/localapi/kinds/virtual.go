package kinds

import (
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Virtual is a group version without stored objects, whose responses are computed on request. It
// contains the discovery data.
type Virtual struct {
	schema.GroupVersion
	All []metav1.APIResource
}

// Metrics is the group of internal/localapi/podmetrics.
var Metrics = Virtual{metricsv1beta1.SchemeGroupVersion, []metav1.APIResource{
	{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}},
	{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
}}

// Berth is the agent's own group. It serves explanations of pods.
var Berth = Virtual{schema.GroupVersion{Group: "berth.dev", Version: "v1"}, []metav1.APIResource{
	{Name: "pods/explain", Kind: "Explanation", Namespaced: true, Verbs: metav1.Verbs{"get"}},
}}

// Virtuals are all virtual groups.
var Virtuals = []Virtual{Metrics, Berth}

// Path returns the path prefix of the group.
func (v Virtual) Path() string { return "/apis/" + v.GroupVersion.Group }

// Describe returns the discovery document of the group.
func (v Virtual) Describe() *metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: v.String(), Version: v.Version}
	return &metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
		Name:     v.GroupVersion.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
}

// Resources returns the discovery document of the version.
func (v Virtual) Resources() *metav1.APIResourceList {
	return &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: v.String(), APIResources: v.All,
	}
}

// Discovery is Resources in the format of aggregated discovery.
func (v Virtual) Discovery() apidiscoveryv2.APIVersionDiscovery {
	d := apidiscoveryv2.APIVersionDiscovery{Version: v.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, r := range v.All {
		scope := apidiscoveryv2.ScopeCluster
		if r.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		kind := metav1.GroupVersionKind(v.WithKind(r.Kind))
		if of, sub, is := strings.Cut(r.Name, "/"); is {
			d.Resources = append(d.Resources, apidiscoveryv2.APIResourceDiscovery{
				Resource: of, Scope: scope, Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: sub, ResponseKind: &kind, Verbs: r.Verbs}},
			})
			continue
		}
		d.Resources = append(d.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: r.Name, ResponseKind: &kind, Scope: scope, Verbs: r.Verbs})
	}
	return d
}
