package kinds

import (
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Virtual is a version of a group that has no objects, but answers that are made when somebody
// asks. What is here is what discovery says of it.
type Virtual struct {
	schema.GroupVersion
	All []metav1.APIResource
}

// Metrics are readings (internal/localapi/podmetrics).
var Metrics = Virtual{metricsv1beta1.SchemeGroupVersion, []metav1.APIResource{
	{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}},
	{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
}}

// Berth is what the agent tells of its own: why a pod is as it is.
var Berth = Virtual{schema.GroupVersion{Group: "berth.dev", Version: "v1"}, []metav1.APIResource{
	{Name: "pods/explain", Kind: "Explanation", Namespaced: true, Verbs: metav1.Verbs{"get"}},
}}

// Virtuals are all of them.
var Virtuals = []Virtual{Metrics, Berth}

// Path is where the paths of the group begin.
func (v Virtual) Path() string { return "/apis/" + v.GroupVersion.Group }

// Describe describes the group.
func (v Virtual) Describe() *metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: v.String(), Version: v.Version}
	return &metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
		Name:     v.GroupVersion.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
}

// Resources describes the version.
func (v Virtual) Resources() *metav1.APIResourceList {
	return &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: v.String(), APIResources: v.All,
	}
}

// Discovery is Resources as aggregated discovery has it.
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
