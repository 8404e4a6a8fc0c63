package podresources

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

type metrics struct {
	total   *prometheus.CounterVec
	methods map[string]method // by full gRPC method name
}

// method is an API method with its counters.
type method struct {
	version          string
	requests, errors *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_resources_endpoint_" + name, Help: "[ALPHA] " + help + " Broken down by server api version.",
		}, []string{"server_api_version"})
	}
	calls := func(name, shown string) method {
		of := "Number of requests to the PodResource " + shown + " endpoint"
		return method{requests: counter("requests_"+name, of+"."), errors: counter("errors_"+name, of+" which returned error.")}
	}
	list, get, allocatable := calls("list", "List"), calls("get", "Get"), calls("get_allocatable", "GetAllocatableResources")
	in := func(version string, m method) method {
		m.version = version
		return m
	}
	return &metrics{
		total: counter("requests_total", "Cumulative number of requests to the PodResource endpoint."),
		methods: map[string]method{
			podresourcesv1.PodResourcesLister_List_FullMethodName:                    in("v1", list),
			podresourcesv1.PodResourcesLister_Get_FullMethodName:                     in("v1", get),
			podresourcesv1.PodResourcesLister_GetAllocatableResources_FullMethodName: in("v1", allocatable),
			v1alpha1.PodResourcesLister_List_FullMethodName:                          in("v1alpha1", list),
		},
	}
}

// count counts an admitted call by its full method name.
func (m *metrics) count(name string, err error) {
	of, ok := m.methods[name]
	if !ok {
		return
	}
	m.total.WithLabelValues(of.version).Inc()
	of.requests.WithLabelValues(of.version).Inc()
	if err != nil {
		of.errors.WithLabelValues(of.version).Inc()
	}
}
