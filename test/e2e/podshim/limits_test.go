//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// drivers are the cgroup drivers that this machine has.
func drivers() []string {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		return []string{"cgroupfs", "systemd"}
	}
	return []string{"cgroupfs"}
}

// setting is a file of a container's cgroup, in either version, and what it must have.
type setting struct{ file1, want1, file2, want2 string }

// limited are resources, and some of what must come of them.
var limited = map[string]struct {
	resources *cri.LinuxContainerResources
	want      []setting
}{
	"none": {&cri.LinuxContainerResources{}, []setting{
		{"memory/memory.limit_in_bytes", "9223372036854771712", "cgroup/memory.max", "max"},
		{"cpu/cpu.shares", "1024", "cgroup/cpu.weight", "100"},
	}},
	"all": {&cri.LinuxContainerResources{
		CpuShares: 512, CpuPeriod: 50_000, CpuQuota: 20_000, CpusetCpus: "0", CpusetMems: "0", MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20, OomScoreAdj: 100,
	}, []setting{
		{"memory/memory.limit_in_bytes", "67108864", "cgroup/memory.max", "67108864"},
		{"memory/memory.memsw.limit_in_bytes", "67108864", "cgroup/memory.swap.max", "0"},
		{"cpu/cpu.shares", "512", "cgroup/cpu.weight", "59"},
		{"cpu/cpu.cfs_quota_us", "20000", "cgroup/cpu.max", "20000 50000"},
		{"cpuset/cpuset.cpus", "0", "cgroup/cpuset.cpus", "0"},
	}},
	"swap": {&cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 96 << 20}, []setting{
		{"memory/memory.memsw.limit_in_bytes", "100663296", "cgroup/memory.swap.max", "33554432"},
	}},
	"quota": {&cri.LinuxContainerResources{CpuQuota: 150_000, CpuShares: 2}, []setting{
		{"cpu/cpu.cfs_quota_us", "150000", "cgroup/cpu.max", "150000 100000"},
		{"cpu/cpu.shares", "2", "cgroup/cpu.weight", "1"},
	}},
}

// onlyUnified are resources that cgroups of version 2 alone have.
var onlyUnified = map[string]struct {
	resources *cri.LinuxContainerResources
	want      []setting
}{
	"unified": {&cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, Unified: map[string]string{
		"memory.high": "50331648", "memory.min": "1048576", "memory.low": "2097152", "pids.max": "77", "memory.oom.group": "1", "cpu.idle": "1",
	}}, []setting{
		{file2: "cgroup/memory.high", want2: "50331648"},
		{file2: "cgroup/memory.min", want2: "1048576"},
		{file2: "cgroup/pids.max", want2: "77"},
		{file2: "cgroup/memory.oom.group", want2: "1"},
		{file2: "cgroup/cpu.idle", want2: "1"},
	}},
	"hugepages": {&cri.LinuxContainerResources{HugepageLimits: []*cri.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}}, []setting{
		{file2: "cgroup/hugetlb.2MB.max", want2: "4194304"},
		{file2: "cgroup/hugetlb.2MB.rsvd.max", want2: "4194304"},
	}},
}

// wantSettings compares the files of the containers' cgroups, as the host sees them.
func (r *rig) wantSettings(name string, ids map[string]string, want []setting) {
	r.Helper()
	podshim, stock := r.settings(ids["podshim"]), r.settings(ids["stock"])
	if diff := differing(podshim, stock); len(diff) > 0 {
		r.Errorf("%s: the cgroup differs from that of a stock shim:\n%s", name, strings.Join(diff, "\n"))
	}
	for _, w := range want {
		file, value := w.file1, w.want1
		if unified() {
			file, value = w.file2, w.want2
		}
		if podshim[file] != value {
			r.Errorf("%s: %s is %q, want %q", name, file, podshim[file], value)
		}
	}
}

func (r *rig) removeAll() {
	r.Helper()
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
}

// The cgroup of a container, and what it sees of it, is the same with pod shims as with stock
// shims: when it is made, and after an update.
func TestLimitsAreAsWithStockShims(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			all := map[string][]setting{}
			ids := map[string]map[string]string{}
			for name, l := range limited {
				ids[name] = r.pair(name, func(c *cri.ContainerConfig) { c.Linux.Resources = l.resources }, "sleep")
				all[name] = l.want
			}
			for name, l := range onlyUnified {
				if unified() {
					ids[name] = r.pair(name, func(c *cri.ContainerConfig) { c.Linux.Resources = l.resources }, "sleep")
					all[name] = l.want
				}
			}
			for name := range all {
				r.wantSettings(name, ids[name], all[name])
				compare(t, name, r.ofCgroups(ids[name]["stock"]), r.ofCgroups(ids[name]["podshim"]), map[int]bool{})
			}
			if unified() {
				r.wantExecBelow(ids["none"])
			}
			for name, l := range limited {
				for _, h := range handlers {
					r.must(r.update(ids["none"][h], l.resources))
				}
				r.wantSettings("update to "+name, ids["none"], nil)
			}
			for _, h := range handlers { // to less, to more, and to what cannot be
				r.must(r.update(ids["all"][h], &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20, CpuShares: 300}))
			}
			r.wantSettings("update to less", ids["all"], []setting{{"memory/memory.limit_in_bytes", "33554432", "cgroup/memory.max", "33554432"}})
			for _, h := range handlers {
				r.must(r.update(ids["all"][h], &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, MemorySwapLimitInBytes: 128 << 20, CpuQuota: -1}))
			}
			r.wantSettings("update to more", ids["all"], []setting{{"memory/memory.limit_in_bytes", "134217728", "cgroup/memory.max", "134217728"}})
			for _, h := range handlers {
				if err := r.update(ids["all"][h], &cri.LinuxContainerResources{CpusetCpus: "4095"}); err == nil {
					t.Errorf("%s: an update to a processor that is not there gave no error", h)
				}
			}
			r.removeAll()
		})
	}
}

// wantExecBelow: a container that has its processes in cgroups below its own takes execs, which are
// there, too.
func (r *rig) wantExecBelow(ids map[string]string) {
	r.Helper()
	for _, h := range handlers {
		dir := cgroups + r.groupOf(ids[h])
		r.must(os.Mkdir(dir+"/below", 0o755))
		r.must(os.WriteFile(dir+"/below/cgroup.procs", fmt.Append(nil, r.pid(ids[h])), 0o644))
		r.must(os.WriteFile(dir+"/cgroup.subtree_control", []byte("+memory"), 0o644))
		if member := r.ofCgroups(ids[h])["file /proc/self/cgroup"]; member != "0::/below" {
			r.Errorf("%s: an exec is in %q", h, member)
		}
		r.must(os.WriteFile(dir+"/cgroup.subtree_control", []byte("-memory"), 0o644))
	}
}

func (r *rig) update(id string, to *cri.LinuxContainerResources) error {
	ctx, cancel := r.within()
	defer cancel()
	_, err := r.rt.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: to})
	return err
}

// ofCgroups is what an exec in a container sees of its cgroups, without its own name.
func (r *rig) ofCgroups(id string) facts {
	r.Helper()
	f, err := readFacts(r.execSync(id, 0, "/payload", "probe").Out)
	r.must(err)
	host := namespacesOf("self")
	for what, v := range f {
		if !strings.Contains(what, "cgroup") {
			delete(f, what)
			continue
		}
		if n, ok := strings.CutPrefix(what, "namespace "); ok && v != host[n] {
			v = "its own"
		}
		f[what] = strings.NewReplacer(id, "ID", r.group, "/GROUP").Replace(v)
	}
	return f
}

// Devices that a container is given are there and can be used as far as is allowed; others cannot.
func TestDevicesAreAsWithStockShims(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			node := r.path("log-of-the-kernel")
			r.must(unix.Mknod(node, unix.S_IFCHR|0o640, int(unix.Mkdev(1, 11))))
			r.must(os.Chown(node, 7, 8))
			for name, c := range map[string]struct{ permissions, want string }{
				"write": {"w", "r:operation not permitted w: rw:operation not permitted"},
				"all":   {"rwm", "r: w: rw:"},
				"none":  {"", "r:operation not permitted w:operation not permitted rw:operation not permitted"},
			} {
				ids := r.pair("device-"+name, func(k *cri.ContainerConfig) {
					if c.permissions != "" {
						k.Devices = []*cri.Device{{HostPath: node, ContainerPath: "/dev/made/kmsg", Permissions: c.permissions}}
						k.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"SYSLOG"}}
					}
				}, "sleep")
				at := "/dev/made/kmsg"
				want := "mode 20640 owner 7:8 number 1:11 " + c.want + "\n"
				if c.permissions == "" { // made by the container itself, from outside: the cgroup is what is left
					at = "/tmp/kmsg"
					want = "mode 20666 owner 0:0 number 1:11 " + c.want + "\n"
				}
				for _, h := range handlers {
					if c.permissions == "" {
						r.must(unix.Mknod(fmt.Sprintf("/proc/%d/root%s", r.pid(ids[h]), at), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11))))
						r.must(os.Chmod(fmt.Sprintf("/proc/%d/root%s", r.pid(ids[h]), at), 0o666))
					}
					if o := r.execSync(ids[h], 0, "/payload", "device", at); o.Out != want || o.Code != 0 {
						t.Errorf("%s, %s: %q, want %q", name, h, o, want)
					}
				}
				r.wantSettings(name, ids, nil)
			}
			r.removeAll()
		})
	}
}
