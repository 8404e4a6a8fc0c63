package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
)

const (
	sandboxID = "0000000000000000000000000000000000000000000000000000000000000000"
	mainID    = "1111111111111111111111111111111111111111111111111111111111111111"
)

// host is a host in files, with one pod.
type host struct {
	t      *testing.T
	dir    string
	fsInfo error
	layers []*runtimeapi.FilesystemUsage // of writable layers; none: the runtime does not tell
	upper  string                        // of a container, as the runtime tells it
	asked  int                           // for the former
	pods   []*pod.Status
}

func newHost(t *testing.T) *host {
	h := &host{t: t, dir: t.TempDir()}
	for _, path := range []string{"", "agent", "runtime", "system", "own", "kubepods", "kubepods/podu", "kubepods/podu/" + sandboxID, "kubepods/podu/" + mainID} {
		h.write("cgroup/"+path+"/cpu.stat", "usage_usec 1000000\nuser_usec 1\nsystem_usec 2\n")
		h.write("cgroup/"+path+"/memory.stat", "anon 3145728\nfile 2097152\ninactive_file 1048576\npgfault 7\npgmajfault 1\n")
		h.write("cgroup/"+path+"/cgroup.procs", "17\n18\n")
		if path != "" {
			h.write("cgroup/"+path+"/memory.current", "6291456\n")
			h.write("cgroup/"+path+"/memory.max", "16777216\n")
			h.write("cgroup/"+path+"/memory.swap.current", "4096\n")
			h.write("cgroup/"+path+"/memory.swap.max", "8192\n")
			h.write("cgroup/"+path+"/cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=10\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")
			h.write("cgroup/"+path+"/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
			h.write("cgroup/"+path+"/io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
		}
	}
	h.write("cgroup/kubepods/podu/memory.max", "max\n")
	h.write("proc/meminfo", "MemTotal:       8192 kB\nSwapTotal:      100 kB\nSwapFree:       40 kB\n")
	h.write("proc/self/cgroup", "0::/own\n")
	h.write("proc/stat", "cpu 1 2\nbtime 1700000000\n")
	h.write("proc/loadavg", "0.00 0.01 0.05 1/234 5678\n")
	h.write("proc/sys/kernel/pid_max", "32768\n")
	h.write("proc/sys/kernel/threads-max", "20000\n")
	const dev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
  %s: 100 2 3 4 0 0 0 0 500 6 7 8 0 0 0 0
veth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
`
	h.write("proc/1/net/dev", fmt.Sprintf(dev, "ens5"))
	h.write("proc/17/net/dev", fmt.Sprintf(dev, "eth0"))
	h.write("layer/file", "12345")
	h.write("proc/self/mountinfo", "1 0 0:30 / /run/k8s.io/"+mainID+"/rootfs rw - overlay overlay rw,lowerdir=/l,upperdir="+h.dir+"/layer,workdir=/w\n2 1 0:31 / /proc rw - proc proc rw\n")
	h.write("logs/default_web_u/main/0.log", "line\n")
	h.write("root/pods/u/etc-hosts", "127.0.0.1 localhost\n")
	h.write("root/pods/u/volumes/kubernetes.io~empty-dir/data/x", "data")
	h.pods = []*pod.Status{{
		UID: "u", Namespace: "default", Name: "web", Sandboxes: []pod.SandboxStatus{{ID: sandboxID, Ready: true, CreatedAt: time.Unix(1700000100, 0)}},
		Containers: []pod.ContainerStatus{
			{ID: mainID, Name: "main", State: pod.StateRunning, CreatedAt: time.Unix(1700000101, 0), Image: "img"},
			{ID: "old", Name: "main", State: pod.StateExited},
		},
	}, {
		UID: "done", Namespace: "default", Name: "done", Containers: []pod.ContainerStatus{{ID: "x", Name: "main", State: pod.StateExited}},
	}}
	return h
}

func (h *host) write(name, content string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) UpperDir(_ context.Context, id pod.ContainerID) (string, error) {
	if h.asked++; id != mainID {
		return "", nil
	}
	return h.upper, nil
}

func (h *host) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp: 1700000200e9, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: h.dir},
		UsedBytes: &runtimeapi.UInt64Value{Value: 77}, InodesUsed: &runtimeapi.UInt64Value{Value: 8},
	}}, ContainerFilesystems: h.layers}, h.fsInfo
}

// Writable layers that are elsewhere than images are told of by themselves.
func TestSummaryOfSplitDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.layers = []*runtimeapi.FilesystemUsage{{
			FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/proc"}, UsedBytes: &runtimeapi.UInt64Value{Value: 5}, InodesUsed: &runtimeapi.UInt64Value{Value: 3},
		}}
		c := h.collector()
		defer run(t, c)()
		s, err := c.Summary(t.Context(), Full)
		if err != nil {
			t.Fatal(err)
		}
		images, layers := s.Node.Runtime.ImageFs, s.Node.Runtime.ContainerFs
		if *images.UsedBytes != 77 || *layers.UsedBytes != 5 || *layers.InodesUsed != 3 || *layers.CapacityBytes == *images.CapacityBytes {
			t.Errorf("images %+v, layers %+v", images, layers)
		}
	})
}

func (h *host) collector() *Collector {
	return New(Config{
		NodeName: "n1", RootDir: h.dir + "/root", PodLogsDir: h.dir + "/logs", Proc: h.dir + "/proc", Runtime: h, Log: slog.New(slog.DiscardHandler),
		Hierarchy: func() (cgroupstat.Hierarchy, error) { return cgroupstat.At(2, h.dir+"/cgroup"), nil },
		Observed:  func() []*pod.Status { return h.pods },
		Pod: func(pod.UID) (*v1.Pod, bool) {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, {Name: "host"},
			}}}, true
		},
		Cgroup: func(uid pod.UID) string { return "/kubepods/pod" + string(uid) },
		Class: func(c v1.PodQOSClass) string {
			if c == v1.PodQOSGuaranteed {
				return "/kubepods"
			}
			return ""
		},
		System: map[string]string{"kubelet": "/agent", "runtime": "/runtime", "misc": "/system"}, Started: time.Unix(1700000050, 0),
	})
}

// Whoever is root in a pod's network gives its interfaces their names, which may be any bytes. No
// label of a metric may hold such a name.
func TestInterfaceWithANameThatIsNoText(t *testing.T) {
	const columns = " 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
	var got []string
	for _, i := range parseNetDev([]byte("eth0:" + columns + "a\xffb:" + columns + "größe:" + columns)) {
		got = append(got, i.Name)
	}
	if diff := cmp.Diff([]string{"eth0", "größe"}, got); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
}

func run(t *testing.T, c *Collector) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}

// systemContainers are the names of those that are told of.
func systemContainers(t *testing.T, n summary.NodeStats) (names []string) {
	for _, sc := range n.SystemContainers {
		if *sc.CPU.UsageCoreNanoSeconds != 1e9 || *sc.Memory.WorkingSetBytes != 5<<20 {
			t.Errorf("%s used %+v, %+v", sc.Name, sc.CPU, sc.Memory)
		}
		names = append(names, sc.Name)
	}
	return names
}

// A kubelet whose cgroup nobody names is where its process is; what is not there is left out.
func TestSystemContainersThatNobodyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		cfg := h.collector().cfg
		cfg.System = map[string]string{"misc": "/gone"}
		for own, want := range map[string][]string{"/own": {"kubelet", "pods"}, "/": {"pods"}} {
			h.write("proc/self/cgroup", "0::"+own+"\n")
			c := New(cfg)
			stop := run(t, c)
			s, err := c.Summary(t.Context(), Full)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, systemContainers(t, s.Node)); diff != "" {
				t.Errorf("in %s: %s", own, diff)
			}
			stop()
		}
	})
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		c := h.collector()
		defer run(t, c)()
		s, err := c.Summary(t.Context(), Full)
		if err != nil {
			t.Fatal(err)
		}
		n := s.Node
		if n.NodeName != "n1" || n.StartTime.Unix() != 1700000000 || *n.Rlimit.MaxPID != 20000 || *n.Rlimit.NumOfRunningProcesses != 234 {
			t.Errorf("node %+v, rlimit %+v", n, n.Rlimit)
		}
		if m := n.Memory; *m.WorkingSetBytes != 4<<20 || *m.AvailableBytes != 4<<20 || *m.RSSBytes != 3<<20 || *m.PageFaults != 7 || *m.MajorPageFaults != 1 {
			t.Errorf("node's memory %+v", m)
		}
		if w := n.Swap; *w.SwapUsageBytes != 60<<10 || *w.SwapAvailableBytes != 40<<10 {
			t.Errorf("node's swap %+v", w)
		}
		if n.Network.Name != "" || len(n.Network.Interfaces) != 1 || n.Network.Interfaces[0].Name != "ens5" {
			t.Errorf("node's network %+v", n.Network)
		}
		if n.Fs == nil || *n.Fs.CapacityBytes == 0 || *n.Runtime.ImageFs.UsedBytes != 77 || *n.Runtime.ImageFs.CapacityBytes == 0 || *n.Runtime.ContainerFs.InodesUsed != 8 {
			t.Errorf("file systems %+v, %+v", n.Fs, n.Runtime)
		}
		if diff := cmp.Diff([]string{"kubelet", "runtime", "misc", "pods"}, systemContainers(t, n)); diff != "" || n.SystemContainers[0].StartTime.Unix() != 1700000050 {
			t.Errorf("system containers %s", diff)
		}
		if len(s.Pods) != 1 {
			t.Fatalf("%d pods, want the running one", len(s.Pods))
		}
		p := s.Pods[0]
		if diff := cmp.Diff(summary.PodReference{Name: "web", Namespace: "default", UID: "u"}, p.PodRef); diff != "" || p.StartTime.Unix() != 1700000100 || *p.ProcessStats.ProcessCount != 2 {
			t.Errorf("pod %s, started %v, processes %d", diff, p.StartTime, *p.ProcessStats.ProcessCount)
		}
		if p.Memory.AvailableBytes != nil || *p.Memory.UsageBytes != 6<<20 || *p.CPU.UsageCoreNanoSeconds != 1e9 || p.CPU.UsageNanoCores != nil {
			t.Errorf("pod's memory %+v, CPU %+v", p.Memory, p.CPU)
		}
		if diff := cmp.Diff(&summary.PSIStats{Some: summary.PSIData{Total: 10, Avg10: 1.5}, Full: summary.PSIData{Total: 5}}, p.CPU.PSI); diff != "" {
			t.Error(diff)
		}
		if p.IO.PSI.Some.Total != 3 || *p.Swap.SwapUsageBytes != 4096 || *p.Swap.SwapAvailableBytes != 4096 {
			t.Errorf("pod's I/O %+v, swap %+v", p.IO, p.Swap)
		}
		eth0 := summary.InterfaceStats{Name: "eth0", RxBytes: ptr.To[uint64](100), RxErrors: ptr.To[uint64](3), TxBytes: ptr.To[uint64](500), TxErrors: ptr.To[uint64](7)}
		if diff := cmp.Diff(eth0, p.Network.InterfaceStats); diff != "" {
			t.Error(diff)
		}
		ct := p.Containers[0]
		if ct.Name != "main" || ct.StartTime.Unix() != 1700000101 || *ct.Memory.AvailableBytes != 11<<20 {
			t.Errorf("container %+v, memory %+v", ct, ct.Memory)
		}
		if *ct.Rootfs.InodesUsed != 2 || *ct.Logs.InodesUsed != 1 || *ct.Logs.UsedBytes == 0 {
			t.Errorf("rootfs %+v, logs %+v", ct.Rootfs, ct.Logs)
		}
		if len(p.VolumeStats) != 1 || p.VolumeStats[0].Name != "data" || *p.VolumeStats[0].InodesUsed != 2 {
			t.Errorf("volumes %+v", p.VolumeStats)
		}
		if e := p.EphemeralStorage; *e.InodesUsed != 2+1+1+2 || *e.UsedBytes < *ct.Rootfs.UsedBytes+*ct.Logs.UsedBytes+*p.VolumeStats[0].UsedBytes {
			t.Errorf("ephemeral storage %+v", e)
		}

		short, err := c.Summary(t.Context(), CPUAndMemory)
		if err != nil {
			t.Fatal(err)
		}
		if n := short.Node; n.Fs != nil || n.Network != nil || n.Rlimit != nil || n.CPU == nil || n.Swap == nil || short.Pods[0].VolumeStats != nil || short.Pods[0].Network != nil {
			t.Errorf("the short summary has more: %+v", short)
		}
		h.fsInfo = errors.New("no runtime")
		time.Sleep(2 * fresh)
		if s, err := c.Summary(t.Context(), Full); err == nil || s != nil {
			t.Errorf("a summary without the runtime: %v, %v", s, err)
		}
		if _, err := c.Summary(t.Context(), CPUAndMemory); err != nil {
			t.Errorf("the short summary does not need the runtime: %v", err)
		}
	})
}

// Rates are computed between questions; nothing is open or remembered a while after the last one.
func TestRatesAndRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		c := h.collector()
		defer run(t, c)()
		rate := func() *uint64 {
			t.Helper()
			r, err := c.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return r.Pods[0].Reading.NanoCores
		}
		use := func(us int) { h.write("cgroup/kubepods/podu/cpu.stat", fmt.Sprintf("usage_usec %d\n", us)) }
		want := func(what string, got, want *uint64) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
		want("the first time", rate(), nil)
		use(3_000_000)
		want("within a second", rate(), nil)
		time.Sleep(4 * time.Second)
		want("half a CPU for 4 s", rate(), ptr.To[uint64](5e8))
		time.Sleep(6 * time.Second)
		want("over 10 s", rate(), ptr.To[uint64](2e8))
		use(4_000_000)
		time.Sleep(2 * time.Second)
		want("over the last 2 s", rate(), ptr.To[uint64](5e8))
		use(10)
		time.Sleep(2 * time.Second)
		want("a counter that began anew", rate(), nil)
		time.Sleep(rateMax + time.Second)
		want("after a silence", rate(), nil)
		open := func() int {
			<-c.lock
			defer func() { c.release() }()
			return len(c.cgroups.groups)
		}
		if open() != 8 {
			t.Errorf("%d cgroups are open, want 8", open())
		}
		h.pods = nil
		time.Sleep(2 * time.Second)
		if _, err := c.Read(t.Context()); err != nil || open() != 5 {
			t.Errorf("%d cgroups are open without a pod, error %v; want 5", open(), err)
		}
		c.layers.current() // as a summary does
		time.Sleep(idle + time.Second)
		synctest.Wait()
		if open() != 0 || c.cgroups.last != nil || len(c.sizes.answers)+len(c.layers.last.in) != 0 {
			t.Errorf("remembered at rest: %d cgroups, %v, %d sizes, %d mounts", open(), c.cgroups.last, len(c.sizes.answers), len(c.layers.last.in))
		}
	})
}

func TestWalk(t *testing.T) {
	d := folders{root: "/var/lib/berth"}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a", make([]byte, 10000), 0o644); err != nil {
		t.Fatal(err)
	}
	alone, err := d.walk(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Link(dir+"/a", dir+"/b"), os.Symlink("/proc", dir+"/c")); err != nil {
		t.Fatal(err)
	}
	both, err := d.walk(t.Context(), dir)
	if err != nil || both.Bytes != alone.Bytes || alone.Inodes != 2 || both.Inodes != 3 || alone.Bytes < 10000 {
		t.Errorf("a file with two names and a link: %+v, alone %+v, error %v", both, alone, err)
	}
	if _, err := d.walk(t.Context(), dir+"/none"); !os.IsNotExist(err) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
