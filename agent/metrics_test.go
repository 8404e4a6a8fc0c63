package agent_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"berth/agent/agenttest"
	"berth/internal/host/cgroups"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// families is a registry that gives every family a child: one without children is not shown.
type families struct{ *prometheus.Registry }

// Register registers a collector.
func (f families) Register(c prometheus.Collector) error {
	if err := f.Registry.Register(c); err != nil {
		return err
	}
	for n := range 10 { // of labels
		values, err := make([]string, n), error(nil)
		switch v := c.(type) {
		case *prometheus.CounterVec:
			_, err = v.GetMetricWithLabelValues(values...)
		case *prometheus.GaugeVec:
			_, err = v.GetMetricWithLabelValues(values...)
		case *prometheus.HistogramVec:
			_, err = v.GetMetricWithLabelValues(values...)
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("%T: too many labels", c)
}

// MustRegister registers collectors.
func (f families) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := f.Register(c); err != nil {
			panic(err)
		}
	}
}

// shown describes a family that is shown: its type, and the bounds of its buckets.
func shown(f *dto.MetricFamily) string {
	text := strings.ToLower(f.GetType().String())
	if h := f.GetMetric()[0].GetHistogram(); h != nil {
		var bounds []float64
		for _, b := range h.GetBucket() {
			bounds = append(bounds, b.GetUpperBound())
		}
		text += fmt.Sprint(" ", bounds)
	}
	return text
}

var description = regexp.MustCompile(`^Desc\{fqName: "(.*)", help: "(.*)", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// isLibrary tells of the families of Go and of the process, which are client_golang's.
func isLibrary(d *prometheus.Desc) bool {
	return strings.Contains(d.String(), `"go_`) || strings.Contains(d.String(), `"process_`)
}

// oddNames are the kubelet's own names that promtool complains about. They stay as dashboards know
// them.
var oddNames = []string{
	"kubelet_certificate_manager_client_expiration_renew_errors", "kubelet_evictions", "kubelet_pod_resize_duration_milliseconds",
	"kubelet_preemptions", "kubelet_server_expiration_renew_errors",
	"kubelet_container_aligned_compute_resources_count", "kubelet_container_aligned_compute_resources_failure_count",
	"kubelet_cpu_manager_exclusive_cpu_allocation_count", "kubelet_topology_manager_admission_duration_ms",
	"kubelet_pod_resources_endpoint_errors_get", "kubelet_pod_resources_endpoint_errors_get_allocatable",
	"kubelet_evented_pleg_connection_error_count", "kubelet_evented_pleg_connection_success_count",
	"volume_manager_selinux_pod_context_mismatch_errors_total", "volume_manager_selinux_volume_context_mismatch_errors_total",
	"volume_manager_selinux_volumes_admitted_total",
	"kubelet_pod_resources_endpoint_errors_list", "kubelet_pod_resources_endpoint_requests_get",
	"kubelet_pod_resources_endpoint_requests_get_allocatable", "kubelet_pod_resources_endpoint_requests_list",
}

// describe lists the families of a registry, in the order of their names.
func describe(t *testing.T, r families) string {
	t.Helper()
	gathered, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, f := range gathered {
		types[f.GetName()] = shown(f)
	}
	problems, err := promlint.NewWithMetricFamilies(gathered).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !slices.Contains(oddNames, p.Metric) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		r.Describe(descs)
		close(descs)
	}()
	var lines []string
	for d := range descs {
		if isLibrary(d) {
			continue
		}
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			t.Errorf("not understood: %s", d)
			continue
		}
		lines = append(lines, fmt.Sprintf("%s{%s} %s\n\t%s\n", m[1], m[3], cmp.Or(types[m[1]], "not shown"), m[2]))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Names, help, types, buckets and labels of all that a member of a cluster counts, and where it is
// shown, are what dashboards go by.
func TestMetricFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		own, slis := families{prometheus.NewRegistry()}, families{prometheus.NewRegistry()}
		w.Metrics, w.SLIs = own, slis
		// The cgroups of this agent are not the machine's.
		if _, err := cgroups.New(cgroups.Config{Driver: cgroups.Cgroupfs, Metrics: own}); err != nil {
			t.Fatal(err)
		}
		providers := filepath.Join(t.TempDir(), "providers.yaml")
		if err := os.WriteFile(providers, []byte(`{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
			{"name": "true", "matchImages": ["a.example"], "defaultCacheDuration": "1h", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		w.Flags = map[string]string{"image-credential-provider-config": providers, "image-credential-provider-bin-dir": "/bin"}
		w.Join()
		bind(w, "web")
		w.Settle(time.Second)
		got := "# /metrics\n" + describe(t, own) + "# /metrics/slis\n" + describe(t, slis)
		const golden = "testdata/metrics/berth.txt"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(string(want), got); diff != "" {
			t.Errorf("the families have changed (-want +got); if that is meant: go test ./agent -run TestMetricFamilies -update\n%s", diff)
		}
	})
}
