package kube_test

import (
	"maps"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/observe/metrics/metricstest"
)

// Requests of all clients of one server count together.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, registry := kubetest.New(), prometheus.NewRegistry()
		c := open(t, kube.Config{REST: s.Config(), Metrics: registry})
		other, err := c.With(kube.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for _, each := range []*kube.Client{c, other} {
			if _, err := each.GetNode(t.Context(), "none"); err == nil {
				t.Fatal("there is no such node")
			}
		}
		u, err := url.Parse(c.Host())
		if err != nil {
			t.Fatal(err)
		}
		got := metricstest.Values(t, registry)
		maps.DeleteFunc(got, func(name string, _ float64) bool { return strings.Contains(name, "_sum{") })
		if diff := cmp.Diff(map[string]float64{
			`rest_client_request_size_bytes_count{host="` + u.Host + `",verb="GET"}`:       2,
			`rest_client_response_size_bytes_count{host="` + u.Host + `",verb="GET"}`:      2,
			`rest_client_requests_total{code="404",host="` + u.Host + `",method="GET"}`:    2,
			`rest_client_request_duration_seconds_count{host="` + u.Host + `",verb="GET"}`: 2,
		}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A call that a busy server has asked to repeat counts as a retry, by what was answered before, and
// so does the wait for its turn.
func TestMetricsOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, registry := kubetest.New(), prometheus.NewRegistry()
		c := open(t, kube.Config{REST: s.Config(), Metrics: registry, Limits: kube.Limits{QPS: 1, Burst: 1}})
		s.Inject(kubetest.Fault{Times: 1, Then: kubetest.Busy(time.Second)})
		if _, err := c.CreateNode(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err != nil {
			t.Fatal(err)
		}
		host := strings.TrimPrefix(strings.TrimPrefix(c.Host(), "http://"), "https://")
		metricstest.Expect(t, registry, map[string]float64{
			`rest_client_request_retries_total{code="429",host="` + host + `",verb="POST"}`:    1,
			`rest_client_rate_limiter_duration_seconds_count{host="` + host + `",verb="POST"}`: 2,
			`rest_client_request_size_bytes_count{host="` + host + `",verb="POST"}`:            2,
		})
	})
}
