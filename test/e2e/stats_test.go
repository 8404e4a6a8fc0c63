//go:build e2e

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/host/cgroupstat"
)

// ask returns what the agent answers at its socket.
func (n *node) ask(pathAndQuery string) string {
	n.t.Helper()
	resp, err := n.api(n.ctx, pathAndQuery)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		n.t.Fatalf("%s: %s %s, %v", pathAndQuery, resp.Status, b, err)
	}
	return string(b)
}

func (n *node) summary() *summary.Summary {
	n.t.Helper()
	var s summary.Summary
	if err := json.Unmarshal([]byte(n.ask("/stats/summary")), &s); err != nil {
		n.t.Fatal(err)
	}
	return &s
}

// statsOf returns the statistics of a pod, nil if it has none.
func statsOf(s *summary.Summary, name string) *summary.PodStats {
	for i := range s.Pods {
		if s.Pods[i].PodRef.Name == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// outside reads the cgroup of a container, found by its id below the node's cgroups.
func (n *node) outside(id string) cgroupstat.Sample {
	n.t.Helper()
	h, err := cgroupstat.Detect()
	if err != nil {
		n.t.Fatal(err)
	}
	found := ""
	base := h.Dir("memory", "/")
	err = filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err == nil && cgroupstat.ContainerID(d.Name()) == id {
			found = strings.TrimPrefix(path, filepath.Clean(base))
			return filepath.SkipAll
		}
		return nil // cgroups come and go
	})
	if err != nil || found == "" {
		n.t.Fatalf("no cgroup of container %s below %s: %v", id, base, err)
	}
	g := h.Open(found)
	defer g.Close()
	s, err := g.Read()
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// What the summary says of a container lies between what its cgroup says before and after; what it
// wrote is found on its disks.
func TestSummaryAgreesWithTheKernel(t *testing.T) {
	n := newNode(t)
	p := n.act("web", v1.RestartPolicyNever, nil, limited(actor("main", `
head -c 5000000 /dev/zero > /data/five; head -c 3000000 /dev/zero > /three; head -c 1000000 /dev/zero | tr '\0' x; echo
say written; while :; do :; done`), "64Mi"))
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/data"})
	n.put(p)
	n.start()
	web := n.awaitReady("web").named("web")
	n.awaitStory("web", "main written")
	id := containerID(web, "main")

	n.summary() // for a rate, there must be one before
	before := n.outside(id)
	var s *summary.Summary
	until(t, "a rate", func() bool {
		before = n.outside(id)
		s = n.summary()
		st := statsOf(s, "web")
		return st != nil && st.CPU.UsageNanoCores != nil && *st.CPU.UsageNanoCores > 0
	})
	after := n.outside(id)
	st := statsOf(s, "web")
	ct := st.Containers[0]
	// A reading may be a second old: it is not held against the one just before it.
	if got := *ct.CPU.UsageCoreNanoSeconds; got > after.CPU.Usage || got == 0 || *st.CPU.UsageCoreNanoSeconds < got {
		t.Errorf("CPU time %d, want at most %d and at most the pod's %d", got, after.CPU.Usage, *st.CPU.UsageCoreNanoSeconds)
	}
	const slack = 8 << 20 // it goes on
	if got := *ct.Memory.WorkingSetBytes; got > max(before.Memory.WorkingSet(), after.Memory.WorkingSet())+slack || got == 0 {
		t.Errorf("working set %d, want that of %d to %d", got, before.Memory.WorkingSet(), after.Memory.WorkingSet())
	}
	if *ct.Memory.AvailableBytes+*ct.Memory.WorkingSetBytes != 64<<20 {
		t.Errorf("available %d and working set %d, want 64Mi together", *ct.Memory.AvailableBytes, *ct.Memory.WorkingSetBytes)
	}
	if ct.Rootfs == nil || *ct.Rootfs.UsedBytes < 3_000_000 || *ct.Rootfs.UsedBytes > 4_500_000 {
		t.Errorf("rootfs %+v, want 3 MB", ct.Rootfs)
	}
	if *ct.Logs.UsedBytes < 1_000_000 {
		t.Errorf("logs %d bytes, want 1 MB", *ct.Logs.UsedBytes)
	}
	if len(st.VolumeStats) != 1 || *st.VolumeStats[0].UsedBytes < 5_000_000 || *st.VolumeStats[0].UsedBytes > 6_000_000 {
		t.Errorf("volumes %+v, want 5 MB in data", st.VolumeStats)
	}
	if got := *st.EphemeralStorage.UsedBytes; got < 9_000_000 {
		t.Errorf("ephemeral storage %d bytes, want 9 MB", got)
	}
	if st.Network == nil || st.Network.Name != "eth0" || st.Network.RxBytes == nil {
		t.Errorf("network %+v, want eth0", st.Network)
	}
	if *st.ProcessStats.ProcessCount < 1 || st.StartTime.IsZero() || ct.StartTime.IsZero() {
		t.Errorf("%d processes, started %v, %v", *st.ProcessStats.ProcessCount, st.StartTime, ct.StartTime)
	}
	if f := s.Node.Runtime.ImageFs; f == nil || *f.CapacityBytes == 0 || *s.Node.Fs.CapacityBytes == 0 || *s.Node.Memory.AvailableBytes == 0 {
		t.Errorf("node %+v", s.Node)
	}

	top := n.berth("top", "pod", "--containers")
	wantText(t, "top pod", top, "POD", "CPU(cores)", "MEMORY(bytes)", "web", "main", "m  ", "Mi")
	wantText(t, "top node", n.berth("top", "node"), "CPU(%)", "MEMORY(%)")
}

// valueOf returns the value of the one sample whose line begins with the name and labels, "" if
// there is none.
func valueOf(metrics, sample string) string {
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, sample+" "); ok {
			value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return value
		}
	}
	return ""
}

// What Prometheus and metrics-server scrape has the pod, agrees with the summary, and counts what
// the agent did.
func TestMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.act("web", v1.RestartPolicyNever, nil, limited(actor("main", "stay"), "64Mi")))
	n.start()
	web := n.awaitReady("web").named("web")
	labels := `{container="main",namespace="default",pod="web"}`
	resource := n.ask("/metrics/resource")
	for _, name := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds"} {
		if v := valueOf(resource, name+labels); v == "" || v == "0" {
			t.Errorf("%s of the container is %q", name, v)
		}
	}
	for _, name := range []string{
		"node_cpu_usage_seconds_total", "node_memory_working_set_bytes", `pod_cpu_usage_seconds_total{namespace="default",pod="web"}`,
		`pod_memory_working_set_bytes{namespace="default",pod="web"}`,
	} {
		if v := valueOf(resource, name); v == "" || v == "0" {
			t.Errorf("%s is %q", name, v)
		}
	}
	if v := valueOf(resource, "resource_scrape_error"); v != "0" {
		t.Errorf("resource_scrape_error is %q", v)
	}
	cadvisor := n.ask("/metrics/cadvisor")
	id := containerID(web, "main")
	wantText(t, "/metrics/cadvisor", cadvisor, `container_spec_memory_limit_bytes{container="main",id="`, `name="`+id+`"`, "6.7108864e+07",
		`container_network_receive_bytes_total{container="",id="`, "container_scrape_error 0", "machine_cpu_cores{")
	own := n.ask("/metrics")
	for sample, want := range map[string]string{
		`kubelet_started_pods_total`: "1", `kubelet_started_containers_total{container_type="container"}`: "1", "kubelet_running_pods": "1",
		`kubelet_running_containers{container_state="running"}`: "1", `kubelet_runtime_operations_total{operation_type="run_podsandbox"}`: "1",
		`kubelet_desired_pods{static="true"}`: "1",
	} {
		if v := valueOf(own, sample); v != want {
			t.Errorf("%s is %q, want %s", sample, v, want)
		}
	}
}

// The API server's proxy reaches what the node tells of itself, for those who may.
func TestMetricsThroughTheAPIServer(t *testing.T) {
	c := newCluster(t)
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	c.awaitAPIReady("web")
	base := "/api/v1/nodes/" + c.name + "/proxy"
	var s summary.Summary
	if err := json.Unmarshal([]byte(c.kubectl("get", "--raw", base+"/stats/summary")), &s); err != nil {
		t.Fatal(err)
	}
	if st := statsOf(&s, "web"); s.Node.NodeName != c.name || st == nil || *st.Memory.WorkingSetBytes == 0 {
		t.Errorf("the summary has %+v of the pod", st)
	}
	wantText(t, "/metrics/resource", c.kubectl("get", "--raw", base+"/metrics/resource"), `pod="web"`, "resource_scrape_error 0")
	wantText(t, "/metrics/cadvisor", c.kubectl("get", "--raw", base+"/metrics/cadvisor"), `container_memory_working_set_bytes{container="`, `pod="web"`)
	wantText(t, "/metrics", c.kubectl("get", "--raw", base+"/metrics"), "rest_client_requests_total{code=\"200\"", "kubelet_node_name{node=\""+c.name+"\"} 1",
		`kubelet_http_requests_total{long_running="false",method="GET",path="metrics/resource",server_type="readwrite"} 1`)
}
