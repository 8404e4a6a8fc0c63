//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
)

const cgroupMount = "/sys/fs/cgroup"

// testDriver is the cgroup driver under test: cgroupfs, unless the environment says systemd.
func testDriver() cgroups.Driver {
	return cmp.Or(cgroups.Driver(os.Getenv("BERTH_CGROUP_DRIVER")), cgroups.Cgroupfs)
}

func newCgroups(t testing.TB, root string, allocatable cgroups.Allocatable) *cgroups.Manager {
	t.Helper()
	m, err := cgroups.New(cgroups.Config{
		Root: root, Driver: testDriver(), Allocatable: allocatable, Settings: cgroups.Settings{PodPidsLimit: 64}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// cgroupTree makes a manager with a root of its own, which is removed with everything in it when
// the test ends.
func cgroupTree(t testing.TB, allocatable cgroups.Allocatable) (*cgroups.Manager, string) {
	t.Helper()
	root := fmt.Sprintf("/berth-e2e-%d", os.Getpid())
	m := newCgroups(t, root, allocatable)
	t.Cleanup(func() {
		uids, err := m.List()
		if err != nil {
			t.Error(err)
		}
		for _, uid := range uids {
			if err := m.RemovePod(context.Background(), uid); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		if err := m.RemoveQoS(); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if left := (place{Cgroup: root}).cgroupDirs(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	if err := m.EnsureQoS(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.EnforceAllocatable(); err != nil {
		t.Fatal(err)
	}
	return m, root
}

// resourcePod has the API's defaults: what has a limit and no request has a request of the same
// amount.
func resourcePod(uid types.UID, r v1.ResourceRequirements) *v1.Pod {
	requests := maps.Clone(r.Limits)
	if requests == nil {
		requests = v1.ResourceList{}
	}
	maps.Copy(requests, r.Requests)
	r.Requests = requests
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: r}}},
	}
}

func amounts(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

// readCgroup returns the value of the file that holds the limit in the host's cgroup version.
func readCgroup(t *testing.T, cgroup, controller, v1File, v2File string) string {
	t.Helper()
	file := filepath.Join(cgroupMount, controller, cgroup, v1File)
	if version, _ := cgroups.Detect(); version == 2 {
		file = filepath.Join(cgroupMount, cgroup, v2File)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestPodCgroups(t *testing.T) {
	m, _ := cgroupTree(t, cgroups.Allocatable{MilliCPU: 2000, MemoryBytes: 1 << 30, Pids: 1000})
	guaranteed := resourcePod("aaaa-1", v1.ResourceRequirements{Limits: amounts("500m", "64Mi")})
	burstable := resourcePod("bbbb-2", v1.ResourceRequirements{Requests: amounts("250m", "32Mi")})
	effort := resourcePod("cccc-3", v1.ResourceRequirements{})
	pods := []*v1.Pod{guaranteed, burstable, effort}
	for range 2 { // the second time nothing may change or fail
		for _, p := range pods {
			if err := m.EnsurePod(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}

	got := map[string]string{}
	read := func(cgroup string) {
		got[cgroup] = strings.Join([]string{
			readCgroup(t, cgroup, "cpu", "cpu.shares", "cpu.weight"),
			readCgroup(t, cgroup, "cpu", "cpu.cfs_quota_us", "cpu.max"),
			readCgroup(t, cgroup, "memory", "memory.limit_in_bytes", "memory.max"),
			readCgroup(t, cgroup, "pids", "pids.max", "pids.max"),
		}, " | ")
	}
	kubepods, burstables, efforts := path.Dir(m.PodParent(guaranteed)), path.Dir(m.PodParent(burstable)), path.Dir(m.PodParent(effort))
	for _, cgroup := range []string{kubepods, burstables, efforts, m.PodParent(guaranteed), m.PodParent(burstable), m.PodParent(effort)} {
		read(cgroup)
	}
	const unlimited = "9223372036854771712"
	want := map[string]string{
		kubepods:                "2048 | -1 | 1073741824 | 1000",
		burstables:              "256 | -1 | " + unlimited + " | max",
		efforts:                 "2 | -1 | " + unlimited + " | max",
		m.PodParent(guaranteed): "512 | 50000 | 67108864 | 64",
		m.PodParent(burstable):  "256 | -1 | " + unlimited + " | 64",
		m.PodParent(effort):     "2 | -1 | " + unlimited + " | 64",
	}
	if version, _ := cgroups.Detect(); version == 2 {
		want = map[string]string{
			kubepods:                "79 | max 100000 | 1073741824 | 1000",
			burstables:              "10 | max 100000 | max | max",
			efforts:                 "1 | max 100000 | max | max",
			m.PodParent(guaranteed): "20 | 50000 100000 | 67108864 | 64",
			m.PodParent(burstable):  "10 | max 100000 | max | 64",
			m.PodParent(effort):     "1 | max 100000 | max | 64",
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}

	uids, err := m.List()
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]pod.UID{"aaaa-1", "bbbb-2", "cccc-3"}, uids); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	for range 2 { // removing what is gone is no error
		for _, uid := range uids {
			if err := m.RemovePod(t.Context(), uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	if uids, err = m.List(); err != nil || len(uids) != 0 {
		t.Errorf("after removal: %v, %v", uids, err)
	}
	got = map[string]string{}
	read(burstables)
	if shares, _, _ := strings.Cut(got[burstables], " "); shares != "2" && shares != "1" {
		t.Errorf("shares of burstable without pods: %s, want the smallest", shares)
	}
}

func TestRemovePodKillsStragglers(t *testing.T) {
	m, _ := cgroupTree(t, cgroups.Allocatable{})
	p := resourcePod("dddd-4", v1.ResourceRequirements{Requests: amounts("100m", "16Mi")})
	if err := m.EnsurePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	// A process that ignores SIGTERM, in a child cgroup such as a runtime makes.
	child := filepath.Join(cgroupMount, "memory", m.PodParent(p), "container")
	if version, _ := cgroups.Detect(); version == 2 {
		child = filepath.Join(cgroupMount, m.PodParent(p), "container")
	}
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "trap '' TERM; exec sleep 300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := os.WriteFile(filepath.Join(child, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.RemovePod(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v, want a kill", err)
	}
	if _, err := os.Stat(child); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", child, err)
	}
}

func BenchmarkEnsureAndRemovePod(b *testing.B) {
	m, _ := cgroupTree(b, cgroups.Allocatable{})
	r := v1.ResourceRequirements{Limits: amounts("500m", "64Mi")}
	b.Run("ensure", func(b *testing.B) {
		for i := range b.N {
			if err := m.EnsurePod(b.Context(), resourcePod(types.UID(fmt.Sprint("bench-", i)), r)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		for i := range b.N {
			if err := m.RemovePod(b.Context(), types.UID(fmt.Sprint("bench-", i))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ensure and remove", func(b *testing.B) {
		for i := range b.N {
			p := resourcePod(types.UID(fmt.Sprint("bench-", i)), r)
			if err := m.EnsurePod(b.Context(), p); err != nil {
				b.Fatal(err)
			}
			if err := m.RemovePod(b.Context(), p.UID); err != nil {
				b.Fatal(err)
			}
		}
	})
}
