package shims

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// written returns the files that limits are written to, in a directory in place of a cgroup of a
// version.
func written(t *testing.T, r *specs.LinuxResources, version int) map[string]string {
	t.Helper()
	cgroups.TestMode = true // files are created, and need not be in a cgroup
	t.Cleanup(func() { cgroups.TestMode = false })
	dir := t.TempDir()
	config := configOf(&specs.Spec{Linux: &specs.Linux{CgroupsPath: "/pods/one", Resources: r}})
	config.SkipDevices = true
	// Files that the library reads before it writes.
	before := map[string]string{"memory.limit_in_bytes": "9223372036854771712", "cgroup.controllers": "cpu cpuset memory pids io hugetlb rdma"}
	for name, text := range before {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var m cgroups.Manager
	var err error
	if version == 1 {
		paths := map[string]string{}
		for c := range strings.FieldsSeq("cpu cpuset memory pids blkio hugetlb rdma net_cls net_prio") {
			paths[c] = dir
		}
		m, err = fs.NewManager(config, paths)
	} else {
		m, err = fs2.NewManager(config, dir)
	}
	if err == nil {
		err = m.Set(config.Resources)
	}
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if text := string(b); text != before[e.Name()] {
			out[e.Name()] = text
		}
	}
	return out
}

func TestLimits(t *testing.T) {
	type files map[string]string
	for name, tc := range map[string]struct {
		resources string
		v1, v2    files // nil: not tested
	}{
		"none":          {`{}`, files{}, files{}},
		"shares":        {`{"cpu":{"shares":512}}`, files{"cpu.shares": "512"}, files{"cpu.weight": "59"}},
		"fewest shares": {`{"cpu":{"shares":2}}`, files{"cpu.shares": "2"}, files{"cpu.weight": "1"}},
		"quota": {
			`{"cpu":{"quota":20000,"period":50000,"burst":1000}}`,
			files{"cpu.cfs_quota_us": "20000", "cpu.cfs_period_us": "50000", "cpu.cfs_burst_us": "1000"},
			files{"cpu.max": "20000 50000", "cpu.max.burst": "1000"},
		},
		"no quota": {`{"cpu":{"quota":-1}}`, files{"cpu.cfs_quota_us": "-1"}, files{"cpu.max": "max 100000"}},
		"idle":     {`{"cpu":{"idle":1}}`, files{"cpu.idle": "1"}, files{"cpu.idle": "1"}},
		"sets": {
			`{"cpu":{"cpus":"0-1","mems":"0"}}`, files{"cpuset.cpus": "0-1", "cpuset.mems": "0"}, files{"cpuset.cpus": "0-1", "cpuset.mems": "0"},
		},
		"real time": {`{"cpu":{"realtimeRuntime":900,"realtimePeriod":1000}}`, files{"cpu.rt_runtime_us": "900", "cpu.rt_period_us": "1000"}, nil},
		"memory": {
			`{"memory":{"limit":1048576,"reservation":524288}}`,
			files{"memory.limit_in_bytes": "1048576", "memory.soft_limit_in_bytes": "524288"},
			files{"memory.max": "1048576", "memory.low": "524288"},
		},
		"swap": {
			`{"memory":{"limit":1048576,"swap":3145728}}`,
			files{"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "3145728"},
			files{"memory.max": "1048576", "memory.swap.max": "2097152"},
		},
		"no swap": {
			`{"memory":{"limit":1048576,"swap":1048576}}`,
			files{"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576"},
			files{"memory.max": "1048576", "memory.swap.max": "0"},
		},
		"all swap": {
			`{"memory":{"limit":1048576,"swap":-1}}`,
			files{"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "-1"},
			files{"memory.max": "1048576", "memory.swap.max": "max"},
		},
		"swappiness, no killer": {`{"memory":{"swappiness":7,"disableOOMKiller":true}}`, files{"memory.swappiness": "7", "memory.oom_control": "1"}, nil},
		"processes":             {`{"pids":{"limit":77}}`, files{"pids.max": "77"}, files{"pids.max": "77"}},
		"all processes":         {`{"pids":{"limit":-1}}`, files{"pids.max": "max"}, files{"pids.max": "max"}},
		"disks": {
			`{"blockIO":{"weight":500,"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1024}],"throttleWriteIOPSDevice":[{"major":8,"minor":0,"rate":9}]}}`,
			files{"blkio.bfq.weight": "500", "blkio.throttle.read_bps_device": "8:0 1024", "blkio.throttle.write_iops_device": "8:0 9"},
			files{"io.weight": "4950", "io.max": "8:0 wiops=9"}, // each value is written separately
		},
		"huge pages": {
			`{"hugepageLimits":[{"pageSize":"2MB","limit":4194304}]}`,
			files{"hugetlb.2MB.limit_in_bytes": "4194304", "hugetlb.2MB.rsvd.limit_in_bytes": "4194304"},
			files{"hugetlb.2MB.max": "4194304", "hugetlb.2MB.rsvd.max": "4194304"},
		},
		"RDMA": {
			`{"rdma":{"mlx5_1":{"hcaHandles":3,"hcaObjects":10}}}`,
			files{"rdma.max": "mlx5_1 hca_handle=3 hca_object=10"},
			files{"rdma.max": "mlx5_1 hca_handle=3 hca_object=10"},
		},
		"network": {`{"network":{"classID":5,"priorities":[{"name":"lo","priority":3}]}}`, files{"net_cls.classid": "5", "net_prio.ifpriomap": "lo 3"}, nil},
		"unified": {
			`{"memory":{"limit":1048576},"unified":{"memory.high":"524288","memory.min":"4096","pids.max":"9"}}`,
			nil,
			files{"memory.max": "1048576", "memory.high": "524288", "memory.min": "4096", "pids.max": "9"},
		},
	} {
		for i, want := range []files{tc.v1, tc.v2} {
			if want == nil {
				continue
			}
			var r specs.LinuxResources
			if err := json.Unmarshal([]byte(tc.resources), &r); err != nil {
				t.Fatal(err)
			}
			if got := written(t, &r, i+1); !maps.Equal(got, want) {
				t.Errorf("%s, version %d: %q, want %q", name, i+1, got, want)
			}
		}
	}
}

func TestDeviceRules(t *testing.T) {
	rules := func(spec *specs.Linux) (out []string) {
		for _, r := range deviceRules(&specs.Spec{Linux: spec}) {
			out = append(out, map[bool]string{true: "allow ", false: "deny "}[r.Allow]+r.CgroupString())
		}
		return out
	}
	defaults := []string{
		"allow c *:* m", "allow b *:* m", "allow c 1:3 rwm", "allow c 1:5 rwm", "allow c 1:7 rwm", "allow c 1:8 rwm", "allow c 1:9 rwm", "allow c 5:0 rwm",
		"allow c 136:* rwm", "allow c 5:2 rwm", "allow c 10:200 rwm",
	}
	if got := rules(&specs.Linux{}); !slices.Equal(got, defaults) {
		t.Errorf("without any of its own: %q, want %q", got, defaults)
	}
	eight, full := int64(8), "/dev/full"
	got := rules(&specs.Linux{
		Devices: []specs.LinuxDevice{{Path: full}},
		Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
			{Access: "rwm"}, {Allow: true, Type: "b", Major: &eight, Access: "r"}, {Allow: true, Type: "a", Access: "rwm"},
		}},
	})
	want := append([]string{"deny a *:* rwm", "allow b 8:* r", "allow a *:* rwm"}, slices.DeleteFunc(slices.Clone(defaults), func(r string) bool { return r == "allow c 1:7 rwm" })...)
	if !slices.Equal(got, want) {
		t.Errorf("with rules, and another /dev/full: %q, want %q", got, want)
	}
}

func TestNamesOfCgroups(t *testing.T) {
	for name, want := range map[string]cgroups.Cgroup{
		"/kubepods/one":             {Path: "/kubepods/one"},
		"kubepods-a.slice:cri:1234": {Systemd: true, Parent: "kubepods-a.slice", ScopePrefix: "cri", Name: "1234"},
	} {
		c := configOf(&specs.Spec{Linux: &specs.Linux{CgroupsPath: name}})
		if c.Path != want.Path || c.Systemd != want.Systemd || c.Parent != want.Parent || c.ScopePrefix != want.ScopePrefix || c.Name != want.Name {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
	}
}
