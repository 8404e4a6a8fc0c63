package nodeauthz

import (
	"slices"
	"testing"
)

func TestCompute(t *testing.T) {
	for _, c := range []struct {
		method, path, verb string
		subresources       []string
	}{
		{"GET", "/metrics", "get", []string{"metrics"}},
		{"HEAD", "/metrics/cadvisor", "get", []string{"metrics"}},
		{"POST", "/stats/summary", "create", []string{"stats"}},
		{"GET", "/logs/", "get", []string{"log"}},
		{"GET", "/pods", "get", []string{"pods", "proxy"}},
		{"GET", "/runningpods/", "get", []string{"pods", "proxy"}},
		{"GET", "/healthz/ping", "get", []string{"healthz", "proxy"}},
		{"GET", "/configz", "get", []string{"configz", "proxy"}},
		{"GET", "/flagz", "get", []string{"configz", "proxy"}},
		{"GET", "/exec/default/web/main", "create", []string{"proxy"}},
		{"GET", "/containerLogs/default/web/main", "get", []string{"proxy"}},
		{"POST", "/checkpoint/default/web/main", "create", []string{"checkpoint"}},
		{"PUT", "/debug/flags/v", "update", []string{"proxy"}},
		{"GET", "/metricsx", "get", []string{"proxy"}},
		{"GET", "//metrics", "get", []string{"proxy"}},
		{"GET", "", "get", []string{"proxy"}},
		{"OPTIONS", "/metrics", "", []string{"metrics"}},
	} {
		if got := Compute(c.method, c.path); got.Verb != c.verb || !slices.Equal(got.Subresources, c.subresources) {
			t.Errorf("%s %s: got %+v, want %s %v", c.method, c.path, got, c.verb, c.subresources)
		}
	}
}
