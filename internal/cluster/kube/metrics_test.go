package kube_test

import (
	"maps"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

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
			`rest_client_requests_total{code="404",host="` + u.Host + `",method="GET"}`:    2,
			`rest_client_request_duration_seconds_count{host="` + u.Host + `",verb="GET"}`: 2,
		}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
