package cgroupstat

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// tree writes files of a cgroup below a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// v1Files are of a container on Linux 6.18, version 1.
var v1Files = map[string]string{
	"cpuacct/g/cpuacct.usage":                           "1234567890\n",
	"cpuacct/g/cpuacct.stat":                            "user 100\nsystem 23\n",
	"cpu/g/cpu.stat":                                    "nr_periods 10\nnr_throttled 3\nthrottled_time 40000000\nnr_bursts 1\nburst_time 5000\n",
	"cpu/g/cpu.shares":                                  "512\n",
	"cpu/g/cpu.cfs_quota_us":                            "50000\n",
	"cpu/g/cpu.cfs_period_us":                           "100000\n",
	"cpu/g/cgroup.procs":                                "17\n18\n",
	"memory/g/memory.usage_in_bytes":                    "8388608\n",
	"memory/g/memory.max_usage_in_bytes":                "9437184\n",
	"memory/g/memory.kmem.usage_in_bytes":               "65536\n",
	"memory/g/memory.failcnt":                           "78\n",
	"memory/g/memory.limit_in_bytes":                    "16777216\n",
	"memory/g/memory.soft_limit_in_bytes":               "9223372036854771712\n",
	"memory/g/memory.memsw.limit_in_bytes":              "9223372036854771712\n",
	"memory/g/memory.stat":                              "cache 8192\nrss 1\npgfault 4158\npgmajfault 2\nhierarchical_memory_limit 16777216\ntotal_cache 2097152\ntotal_rss 4194304\ntotal_mapped_file 4096\ntotal_swap 12288\ntotal_pgfault 9999\ntotal_inactive_file 1048576\ntotal_active_file 524288\n",
	"pids/g/pids.current":                               "5\n",
	"pids/g/pids.max":                                   "64\n",
	"blkio/g/blkio.throttle.io_service_bytes_recursive": "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\n254:0 Async 1\n254:0 Discard 0\n254:0 Total 12288\n8:16 Read 1\nTotal 12289\n",
	"blkio/g/blkio.throttle.io_serviced_recursive":      "254:0 Read 1\n254:0 Write 2\n254:0 Total 3\nTotal 3\n",
}

// v2Files are of a container on Linux 6.12, version 2.
var v2Files = map[string]string{
	"g/cpu.stat":            "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\nnice_usec 0\nnr_periods 10\nnr_throttled 3\nthrottled_usec 40000\nnr_bursts 1\nburst_usec 5\n",
	"g/cpu.weight":          "20\n",
	"g/cpu.max":             "50000 100000\n",
	"g/memory.current":      "8388608\n",
	"g/memory.peak":         "9437184\n",
	"g/memory.max":          "16777216\n",
	"g/memory.min":          "0\n",
	"g/memory.swap.current": "12288\n",
	"g/memory.swap.max":     "max\n",
	"g/memory.stat":         "anon 4194304\nfile 2097152\nkernel 65536\nfile_mapped 4096\ninactive_anon 1\ninactive_file 1048576\nactive_file 524288\npgfault 4158\npgmajfault 2\n",
	"g/memory.events":       "low 0\nhigh 0\nmax 78\noom 1\noom_kill 3\noom_group_kill 0\n",
	"g/pids.current":        "5\n",
	"g/pids.max":            "max\n",
	"g/cgroup.procs":        "17\n18\n",
	"g/io.stat":             "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0 cost.vrate=100.00 cost.usage=5 cost.wait=6 cost.indebt=7 cost.indelay=8\n8:16 \n",
	"g/cpu.pressure":        "some avg10=45.85 avg60=26.48 avg300=16.14 total=7483207934\nfull avg10=0.00 avg60=0.10 avg300=0.00 total=5\n",
	"g/memory.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	"g/io.pressure":         "some avg10=1.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=8\n",
}

func TestRead(t *testing.T) {
	memory := Memory{
		Usage: 8388608, Peak: 9437184, Swap: 12288, Cache: 2097152, RSS: 4194304, Mapped: 4096, ActiveFile: 524288, InactiveFile: 1048576, Faults: 4158,
		MajorFaults: 2, Limit: 16777216, SwapLimit: Unlimited,
	}
	memory1 := memory
	memory1.Kernel, memory1.Failures = 65536, 78
	disk := DeviceIO{Major: 254, ReadBytes: 4096, WriteBytes: 8192, Reads: 1, Writes: 2}
	shared := disk
	shared.Cost = &IOCost{Usage: 5, Wait: 6, Debt: 7, Delay: 8}
	tests := []struct {
		version int
		files   map[string]string
		want    Sample
	}{
		{1, v1Files, Sample{
			CPU: &CPU{
				Usage: 1234567890, User: 1e9, System: 23e7, Periods: 10, ThrottledPeriods: 3, Bursts: 1, ThrottledTime: 4e7, BurstTime: 5000,
				Shares: 512, Quota: 50000, Period: 100000,
			},
			Memory: &memory1, Pids: &Pids{Threads: 5, Max: 64, Processes: 2}, IO: []DeviceIO{{Major: 8, Minor: 16, ReadBytes: 1}, disk},
		}},
		{2, v2Files, Sample{
			CPU: &CPU{
				Usage: 1234567000, User: 1e9, System: 234567000, Periods: 10, ThrottledPeriods: 3, Bursts: 1, ThrottledTime: 4e7, BurstTime: 5000,
				Shares: 500, Quota: 50000, Period: 100000,
			},
			Memory: &memory, Pids: &Pids{Threads: 5, Processes: 2}, IO: []DeviceIO{shared, {Major: 8, Minor: 16}},
			Pressure: &Pressure{
				CPU:    &Stall{Some: Stalled{45.85, 26.48, 16.14, 7483207934}, Full: Stalled{Avg60: 0.1, Total: 5}},
				Memory: &Stall{}, IO: &Stall{Some: Stalled{Avg10: 1, Total: 9}, Full: Stalled{Total: 8}},
			},
		}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint("version ", tt.version), func(t *testing.T) {
			dir := tree(t, tt.files)
			h := At(tt.version, dir)
			g := h.Open("/g")
			defer g.Close()
			for range 2 { // the second time from files that are open
				got, err := g.Read()
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Sample{}, "Time")); diff != "" {
					t.Error(diff)
				}
				if got.Memory.WorkingSet() != 7340032 {
					t.Errorf("working set %d", got.Memory.WorkingSet())
				}
			}
			if _, err := h.Open("/gone").Read(); !IsGone(err) {
				t.Errorf("a cgroup that is gone: %v", err)
			}
		})
	}
}

// The own cgroup is one of which CPU and memory are known, and not the root.
func TestOwn(t *testing.T) {
	for _, tt := range []struct {
		version    int
		file, want string
	}{
		{2, "0::/system.slice/kubelet.service\n", "/system.slice/kubelet.service"},
		{2, "0::/\n", ""},
		{1, "5:memory:/agent\n4:cpu,cpuacct:/agent\n1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service\n", "/agent"},
		{1, "5:memory:/agent\n4:cpu,cpuacct:/\n0::/agent\n", ""},
		{1, "5:memory:/\n4:cpu,cpuacct:/\n0::/agent\n", ""},
	} {
		dir := tree(t, map[string]string{"self/cgroup": tt.file})
		if got, err := At(tt.version, "").Own(dir); got != tt.want || err != nil {
			t.Errorf("version %d, %q: %q, %v, want %q", tt.version, tt.file, got, err, tt.want)
		}
	}
	if _, err := At(2, "").Own(t.TempDir()); err == nil {
		t.Error("a process without cgroups is no error")
	}
}

// What a host lacks is absent, and the rest is there.
func TestReadSparse(t *testing.T) {
	g := At(2, tree(t, map[string]string{"cpu.stat": "usage_usec 5\n", "memory.stat": "anon 3\nfile 4\ninactive_file 1\n"})).Open("/")
	defer g.Close()
	got, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := Sample{CPU: &CPU{Usage: 5000}, Memory: &Memory{Usage: 7, RSS: 3, Cache: 4, InactiveFile: 1, Limit: Unlimited, SwapLimit: Unlimited}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Sample{}, "Time")); diff != "" {
		t.Error(diff)
	}
	bad := At(2, tree(t, map[string]string{"cpu.stat": "usage_usec 5\n", "pids.current": "many\n"})).Open("/")
	if _, err := bad.Read(); err == nil || IsGone(err) {
		t.Errorf("a file that is no number: %v", err)
	}
}

func TestOOMKills(t *testing.T) {
	if n, err := At(2, tree(t, v2Files)).OOMKills("/g"); n != 3 || err != nil {
		t.Errorf("OOMKills = %d, %v, want 3", n, err)
	}
	together := map[string]string{"g/memory.oom.group": "1\n", "g/memory.events": "oom 1\noom_kill 5\noom_group_kill 2\n"}
	if n, err := At(2, tree(t, together)).OOMKills("/g"); n != 2 || err != nil {
		t.Errorf("OOMKills of a cgroup that is killed as a whole = %d, %v, want 2", n, err)
	}
	together["g/memory.events"] = "oom 1\noom_kill 5\n"
	if n, err := At(2, tree(t, together)).OOMKills("/g"); n != 5 || err != nil {
		t.Errorf("OOMKills under an older kernel = %d, %v, want 5", n, err)
	}
	v1 := At(1, tree(t, map[string]string{"memory/g/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}))
	if n, err := v1.OOMKills("/g"); n != 2 || err != nil {
		t.Errorf("OOMKills = %d, %v, want 2", n, err)
	}
}

func TestContainerID(t *testing.T) {
	const id = "4c0ab0ef5f7b1a4b4c0ab0ef5f7b1a4b4c0ab0ef5f7b1a4b4c0ab0ef5f7b1a4b"
	for name, want := range map[string]string{
		id: id, "cri-containerd-" + id + ".scope": id, "crio-" + id + ".scope": id, "crio-conmon-" + id + ".scope": "",
		"x" + id: "", "kubepods": "", id[1:]: "", "pod5c3b": "", "cri-containerd-" + id[1:] + "X.scope": "",
	} {
		if got := ContainerID(name); got != want {
			t.Errorf("ContainerID(%q) = %q, want %q", name, got, want)
		}
	}
	if got := ContainerIn("/kubepods/podx/" + id + "/docker/1111111111111111111111111111111111111111111111111111111111111111"); got != id {
		t.Errorf("ContainerIn = %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range v2Files {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		b := []byte(s)
		_, _ = parsePressure(b)
		_, _, _ = parseCPUMax(b)
		_, _ = parseNumber(b)
		parseIOStat(b)
		parseBlkio(b, b)
		parseFlat(b, func(string, uint64) {})
	})
}
