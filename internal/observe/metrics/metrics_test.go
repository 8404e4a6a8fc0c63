package metrics

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/procfs/blockdevice"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/config"
	"berth/internal/host/cgroupstat"
	"berth/internal/observe/prober"
	"berth/internal/observe/stats"
	"berth/internal/pod"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// readings are of a node with one pod, which has everything.
type readings struct{ err error }

func reading(path string) *stats.Reading {
	line := cgroupstat.Stalled{Total: 2_000_000}
	stall := &cgroupstat.Stall{Some: line, Full: line}
	rate := uint64(5)
	return &stats.Reading{Path: path, Created: time.Unix(1700000000, 0), NanoCores: &rate, Sample: cgroupstat.Sample{
		Time:     time.Unix(1700000100, 500e6),
		CPU:      &cgroupstat.CPU{Usage: 1_500_000_000, User: 1e9, System: 5e8, Periods: 4, Quota: 50000, Period: 100000, Shares: 512},
		Memory:   &cgroupstat.Memory{Usage: 3 << 20, InactiveFile: 1 << 20, Swap: 4096, SwapLimit: 8192, Limit: cgroupstat.Unlimited},
		Pids:     &cgroupstat.Pids{Threads: 3, Processes: 2},
		IO:       []cgroupstat.DeviceIO{{Major: 4000000, ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4, Cost: &cgroupstat.IOCost{Usage: 5e6, Wait: 6e6, Debt: 7e6, Delay: 8e6}}},
		Pressure: &cgroupstat.Pressure{CPU: stall, Memory: stall, IO: stall},
	}}
}

func (r readings) Read(context.Context) (*stats.Readings, error) {
	if r.err != nil {
		return nil, r.err
	}
	return &stats.Readings{
		Root: reading("/"), Classes: []*stats.Reading{reading("/kubepods")}, Network: []stats.Interface{{Name: "eth0", RxBytes: 1}},
		Pods: []stats.Pod{{
			UID: "u", Namespace: "default", Name: "web", Reading: reading("/kubepods/podu"), Network: []stats.Interface{{Name: "eth0", RxBytes: 7}},
			Sandbox: &stats.Container{ID: "sb", Reading: reading("/kubepods/podu/sb")},
			Containers: []stats.Container{
				{ID: "c1", Name: "main", Image: "img", CreatedAt: time.Unix(1700000001, 250e6), Reading: reading("/kubepods/podu/c1")},
				{ID: "c2", Name: "gone", CreatedAt: time.Unix(1700000002, 0)},
			},
		}},
	}, nil
}

// collectors are all of ours, by path.
func collectors(t *testing.T, r readings) map[string]*prometheus.Registry {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	static := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "s", Annotations: map[string]string{pod.ConfigSourceAnnotation: string(pod.FileSource)}}}
	list := func() []*v1.Pod { return []*v1.Pod{static} }
	lives := func() map[pod.UID]pod.Lifecycle {
		return map[pod.UID]pod.Lifecycle{
			"s": {State: pod.Syncing}, "o": {State: pod.Terminating, Orphan: true}, "r": {State: pod.Terminating, RuntimeOnly: true}, "f": {State: pod.Finished}, "w": {},
		}
	}
	none := func() []*v1.Pod { return nil }
	out := map[string]*prometheus.Registry{"/metrics": prometheus.NewRegistry()}
	pods := NewPods(PodsConfig{
		List: list, Lifecycles: lives, Wanted: none, Observed: func() []*pod.Status { return nil }, Metrics: out["/metrics"],
	})
	pods.counts.startedContainers.WithLabelValues("container").Inc()
	pods.counts.containerEnded(regularType, 137, "OOMKilled")
	pods.counts.requested("limits", nil, v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")})
	pods.counts.infeasibleResizes.WithLabelValues("other").Inc()
	pods.counts.resizeDuration.WithLabelValues("true").Observe(20)
	out["/metrics"].MustRegister(pods, Build{Node: "n1", Version: "v1", Gates: []config.Gate{{Name: "Some", Stage: "BETA", On: true}, {Name: "Old"}}})
	out["/metrics"].MustRegister(Logs(func() []stats.LogUse {
		return []stats.LogUse{{UID: "u", Namespace: "default", Name: "web", Container: "main", Bytes: 4096}}
	}))
	out["/metrics"].MustRegister(Claims{Uses: func(context.Context) []stats.ClaimUse {
		return []stats.ClaimUse{
			{Namespace: "default", Claim: "disk", VolumeUse: stats.VolumeUse{
				Capacity: 4, Available: 3, Used: 1, Inodes: 10, InodesFree: 7, InodesUsed: 3, Abnormal: new(true),
			}},
			{Namespace: "default", Claim: "other"},
		}
	}})
	out["/metrics/probes"] = prometheus.NewRegistry()
	web := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}}
	out["/metrics/probes"].MustRegister(Probes(func() []prober.Count {
		return []prober.Count{
			{Pod: web, Container: "main", Kind: "Liveness", Successful: 2, Failed: 1, Seconds: 0.5},
			{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "v"}}, Container: "main", Kind: "Liveness", Unknown: 1},
		}
	}))
	out["/metrics/probes"].MustRegister(ProcessStart("/proc"))
	out["/metrics/resource"] = prometheus.NewRegistry()
	out["/metrics/resource"].MustRegister(Resource{Readings: r, Log: log, Hidden: true})
	out["/metrics/cadvisor"] = prometheus.NewRegistry()
	out["/metrics/cadvisor"].MustRegister(Cadvisor{
		Readings: r, Log: log, Kills: func(string) uint64 { return 3 },
		Files: func(string) (stats.Files, bool) {
			return stats.Files{Descriptors: 9, Sockets: 2, MaxOpen: new(uint64(1024))}, true
		},
		Disks: func() ([]stats.Disk, error) {
			return []stats.Disk{
				{Device: "/dev/counted", Major: 4000000, Capacity: 100, Free: 40, Inodes: 10, InodesFree: 4, IO: &blockdevice.IOStats{ReadIOs: 1, IOsTotalTicks: 2500, ReadSectors: 6}},
				{Device: "/dev/part1", Major: 4000001, IO: &blockdevice.IOStats{ReadIOs: 5}},
				{Device: "/dev/silent", Major: 4000002, Capacity: 7},
			}, nil
		},
		Machine: func() (Machine, error) {
			return Machine{ID: "m", CPUs: 2, Topology: stats.Topology{Cores: 1, Sockets: 1}, Memory: 1 << 30, Kernel: "6.18"}, nil
		},
	})
	return out
}

func gather(t *testing.T, r *prometheus.Registry) []*dto.MetricFamily {
	t.Helper()
	f, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Names, types and labels are what dashboards and metrics-server go by.
func TestNames(t *testing.T) {
	var b strings.Builder
	all := collectors(t, readings{})
	for _, path := range []string{"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"} {
		fmt.Fprintf(&b, "# %s\n", path)
		for _, f := range gather(t, all[path]) {
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			fmt.Fprintf(&b, "%s %s {%s}\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ","))
		}
	}
	const golden = "testdata/names.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("the names have changed (-want +got); if that is meant: go test ./internal/observe/metrics -update\n%s", diff)
	}
}

// upstreamNames are the kubelet's and cAdvisor's own names that promtool complains about. They stay
// as dashboards know them.
var upstreamNames = map[string]string{
	"kubelet_pod_resize_duration_milliseconds": `use base unit "seconds" instead of "milliseconds"`,
	"container_memory_failcnt":                 `counter metrics should have "_total" suffix`,
	"container_cpu_load_d_average_10s":         "metric names should not contain abbreviated units",
	"container_fs_inodes_total":                `non-counter metrics should not have "_total" suffix`,
	"cadvisor_version_info":                    "label names should be written in 'snake_case' not 'camelCase'",
}

// `promtool check metrics` is this library over the same text.
func TestLint(t *testing.T) {
	for path, r := range collectors(t, readings{}) {
		problems, err := promlint.NewWithMetricFamilies(gather(t, r)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if want, ok := upstreamNames[p.Metric]; !ok || want != p.Text {
				t.Errorf("%s: %s: %s", path, p.Metric, p.Text)
			}
		}
	}
}

// text is what a scrape is answered with.
func text(t *testing.T, r *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(r, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestScrapes(t *testing.T) {
	all := collectors(t, readings{})
	tests := map[string][]string{
		"/metrics/resource": {
			"node_cpu_usage_seconds_total 1.5 1700000100500",
			"node_memory_working_set_bytes 2.097152e+06 1700000100500",
			`container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"} 1.5 1700000100500`,
			`container_start_time_seconds{container="main",namespace="default",pod="web"} 1.70000000125e+09`,
			`container_swap_limit_bytes{container="main",namespace="default",pod="web"} 8192 1700000100500`,
			`pod_memory_working_set_bytes{namespace="default",pod="web"} 2.097152e+06 1700000100500`,
			"resource_scrape_error 0",
			"scrape_error 0",
			"node_swap_usage_bytes ",
			`pod_swap_usage_bytes{namespace="default",pod="web"} `,
			`container_swap_usage_bytes{container="main",namespace="default",pod="web"} `,
		},
		"/metrics/cadvisor": {
			`container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""} 1.5 1700000100500`,
			`container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/podu",image="",name="",namespace="default",pod="web"} 1.5 1700000100500`,
			`container_memory_working_set_bytes{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 2.097152e+06 1700000100500`,
			`container_network_receive_bytes_total{container="",id="/kubepods/podu/sb",image="",interface="eth0",name="sb",namespace="default",pod="web"} 7 1700000100500`,
			`container_spec_memory_limit_bytes{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 0` + "\n",
			`container_pressure_cpu_waiting_seconds_total{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 2 1700000100500`,
			`container_oom_events_total{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 3 1700000100500`,
			`machine_cpu_cores{boot_id="",machine_id="m",system_uuid=""} 2`,
			`container_file_descriptors{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 9 1700000100500`,
			`container_sockets{container="",id="/kubepods/podu/sb",image="",name="sb",namespace="default",pod="web"} 2 1700000100500`,
			`container_ulimits_soft{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web",ulimit="max_open_files"} 1024 1700000100500`,
			`machine_cpu_physical_cores{boot_id="",machine_id="m",system_uuid=""} 1`,
			`container_health_state{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} -1 1700000100500`,
			`container_cpu_load_d_average_10s{container="main",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 0 1700000100500`,
			`container_fs_io_cost_wait_seconds_total{container="main",device="",id="/kubepods/podu/c1",image="img",name="c1",namespace="default",pod="web"} 6 1700000100500`,
			`container_fs_usage_bytes{container="",device="/dev/counted",id="/",image="",name="",namespace="",pod=""} 60 1700000100500`,
			`container_fs_limit_bytes{container="",device="/dev/silent",id="/",image="",name="",namespace="",pod=""} 7 1700000100500`,
			`container_fs_io_time_seconds_total{container="",device="/dev/counted",id="/",image="",name="",namespace="",pod=""} 2.5 1700000100500`,
			`container_fs_reads_total{container="",device="",id="/",image="",name="",namespace="",pod=""} 3 1700000100500`,
			`container_fs_reads_total{container="",device="/dev/part1",id="/",image="",name="",namespace="",pod=""} 5 1700000100500`,
			"container_scrape_error 0",
		},
		"/metrics/probes": {
			`prober_probe_total{container="main",namespace="default",pod="web",pod_uid="u",probe_type="Liveness",result="failed"} 1`,
			`prober_probe_total{container="main",namespace="default",pod="web",pod_uid="v",probe_type="Liveness",result="unknown"} 1`,
			`prober_probe_duration_seconds_count{container="main",namespace="default",pod="web",probe_type="Liveness"} 3`,
		},
		"/metrics": {
			`kubelet_terminated_containers_total{container_type="container",exit_code="137",reason="OOMKilled"} 1`,
			`kubelet_node_name{node="n1"} 1`,
			`kubelet_container_requested_resizes_total{operation="add",requirement="limits",resource="cpu"} 1`,
			`kubelet_pod_pending_resizes{reason="deferred"} 0`,
			"kubelet_pod_in_progress_resizes 0",
			`kubelet_working_pods{config="desired",lifecycle="sync",static="true"} 1`,
			`kubelet_working_pods{config="orphan",lifecycle="terminating",static="unknown"} 1`,
			`kubelet_working_pods{config="runtime_only",lifecycle="terminating",static="unknown"} 1`,
			"kubelet_mirror_pods 1",
			`kubelet_active_pods{static="true"} 1`,
			"kubelet_managed_ephemeral_containers 0",
			`kubelet_metrics_provider{provider="cadvisor"} 1`,
			`kubernetes_build_info{build_date="",compiler="gc",git_commit="",git_tree_state="",git_version="v1",`,
			`version_info{binary="1.36.3",component="kube",emulation="1.36",min_compat="1.35"} 1`,
			`kubernetes_feature_enabled{name="Some",stage="BETA"} 1`,
			`kubernetes_feature_enabled{name="Old",stage=""} 0`,
			`kubelet_container_log_filesystem_used_bytes{container="main",namespace="default",pod="web",uid="u"} 4096`,
			`kubelet_volume_stats_inodes_free{namespace="default",persistentvolumeclaim="disk"} 7`,
			`kubelet_volume_stats_available_bytes{namespace="default",persistentvolumeclaim="disk"} 3`,
			`kubelet_volume_stats_inodes_used{namespace="default",persistentvolumeclaim="disk"} 3`,
			`kubelet_volume_stats_health_status_abnormal{namespace="default",persistentvolumeclaim="disk"} 1`,
			`kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="other"} 0`,
		},
	}
	for path, lines := range tests {
		got := text(t, all[path])
		for _, want := range lines {
			if !strings.Contains("\n"+got, "\n"+want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
	failed := collectors(t, readings{err: errors.New("no cgroups")})
	for path, want := range map[string]string{"/metrics/resource": "resource_scrape_error 1", "/metrics/cadvisor": "container_scrape_error 1"} {
		if got := text(t, failed[path]); !strings.Contains(got, want) || strings.Contains(got, "container_cpu_usage_seconds_total{") {
			t.Errorf("%s of a node that cannot be read: %s", path, got)
		}
	}
}

// A pod's start, and the starts and ends of its containers, count once; those before the agent's
// time do not.
func TestPodCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		status := func(id string, started time.Time, ended *v1.ContainerStateTerminated) v1.ContainerStatus {
			s := v1.ContainerStatus{Name: "main", ContainerID: id, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}}}
			s.LastTerminationState.Terminated = ended
			return s
		}
		old := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "old"}, Status: v1.PodStatus{
			Phase: v1.PodRunning, StartTime: &metav1.Time{Time: now.Add(-time.Hour)}, ContainerStatuses: []v1.ContainerStatus{status("o1", now.Add(-time.Hour), nil)},
		}}
		fresh := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "new"}, Spec: v1.PodSpec{HostUsers: new(false)}, Status: v1.PodStatus{Phase: v1.PodPending, StartTime: &metav1.Time{Time: now}}}
		pods := map[pod.UID]*v1.Pod{"old": old, "new": fresh}
		changed := pod.NewInbox[pod.UID]()
		r := prometheus.NewRegistry()
		p := NewPods(PodsConfig{
			Changed: changed, Pod: func(uid pod.UID) (*v1.Pod, bool) { x, ok := pods[uid]; return x, ok },
			List: func() []*v1.Pod { return []*v1.Pod{old, fresh} }, Started: now, Metrics: r,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		for range 2 { // telling it twice makes no difference
			pods["new"] = fresh.DeepCopy()
			pods["new"].Status.Phase = v1.PodRunning
			pods["new"].Status.ContainerStatuses = []v1.ContainerStatus{status("n2", now.Add(2*time.Second), &v1.ContainerStateTerminated{
				ContainerID: "n1", ExitCode: 3, Reason: "Error", StartedAt: metav1.NewTime(now.Add(time.Second)), FinishedAt: metav1.NewTime(now.Add(time.Second)),
			})}
			changed.Put("new")
			synctest.Wait()
		}
		got := text(t, r)
		for _, want := range []string{
			"kubelet_started_pods_total 1", `kubelet_started_containers_total{container_type="container"} 2`,
			`kubelet_terminated_containers_total{container_type="container",exit_code="3",reason="Error"} 1`, "kubelet_pod_start_duration_seconds_sum 3\n", "kubelet_containers_per_pod_count_count 2",
			"kubelet_started_user_namespaced_pods_total 1",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("lacks %s", want)
			}
		}
		delete(pods, "new")
		changed.Put("new")
		synctest.Wait()
		if _, ok := p.seen["new"]; ok || len(p.seen) != 1 {
			t.Errorf("pods that are remembered: %d", len(p.seen))
		}
		cancel()
		<-done
	})
}
