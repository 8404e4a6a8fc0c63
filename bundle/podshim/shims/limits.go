package shims

import (
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// configOf converts a specification to the cgroup library's form. runc's converter needs cgo.
func configOf(spec *specs.Spec) *cgroups.Cgroup {
	c := &cgroups.Cgroup{Path: spec.Linux.CgroupsPath, Resources: &cgroups.Resources{}}
	if bySystemd(c.Path) {
		parts := strings.SplitN(c.Path+"::", ":", 4)
		c.Systemd, c.Path, c.Parent, c.ScopePrefix, c.Name = true, "", parts[0], parts[1], parts[2]
	}
	if r := spec.Linux.Resources; r != nil {
		to := c.Resources
		setMemory(to, r.Memory)
		setCPU(to, r.CPU)
		setBlockIO(to, r.BlockIO)
		if r.Pids != nil {
			to.PidsLimit = r.Pids.Limit
		}
		for _, l := range r.HugepageLimits {
			to.HugetlbLimit = append(to.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
		}
		for device, l := range r.Rdma {
			if to.Rdma == nil {
				to.Rdma = map[string]cgroups.LinuxRdma{}
			}
			to.Rdma[device] = cgroups.LinuxRdma{HcaHandles: l.HcaHandles, HcaObjects: l.HcaObjects}
		}
		if r.Network != nil {
			set(&to.NetClsClassid, r.Network.ClassID)
			for _, p := range r.Network.Priorities {
				to.NetPrioIfpriomap = append(to.NetPrioIfpriomap, &cgroups.IfPrioMap{Interface: p.Name, Priority: int64(p.Priority)})
			}
		}
		if len(r.Unified) > 0 {
			to.Unified = maps.Clone(r.Unified)
		}
	}
	c.Devices = deviceRules(spec)
	return c
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func setMemory(to *cgroups.Resources, m *specs.LinuxMemory) {
	if m == nil {
		return
	}
	set(&to.Memory, m.Limit)
	set(&to.MemoryReservation, m.Reservation)
	set(&to.MemorySwap, m.Swap)
	to.MemorySwappiness = m.Swappiness
	set(&to.OomKillDisable, m.DisableOOMKiller)
	set(&to.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
}

func setCPU(to *cgroups.Resources, c *specs.LinuxCPU) {
	if c == nil {
		return
	}
	if c.Shares != nil {
		to.CpuShares, to.CpuWeight = *c.Shares, cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
	}
	set(&to.CpuQuota, c.Quota)
	set(&to.CpuPeriod, c.Period)
	set(&to.CpuRtRuntime, c.RealtimeRuntime)
	set(&to.CpuRtPeriod, c.RealtimePeriod)
	to.CpuBurst, to.CPUIdle = c.Burst, c.Idle
	to.CpusetCpus, to.CpusetMems = c.Cpus, c.Mems
}

func setBlockIO(to *cgroups.Resources, b *specs.LinuxBlockIO) {
	if b == nil {
		return
	}
	set(&to.BlkioWeight, b.Weight)
	set(&to.BlkioLeafWeight, b.LeafWeight)
	for _, d := range b.WeightDevice {
		var weight, leaf uint16
		set(&weight, d.Weight)
		set(&leaf, d.LeafWeight)
		to.BlkioWeightDevice = append(to.BlkioWeightDevice, cgroups.NewWeightDevice(d.Major, d.Minor, weight, leaf))
	}
	throttles := func(list []specs.LinuxThrottleDevice) (out []*cgroups.ThrottleDevice) {
		for _, d := range list {
			out = append(out, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate))
		}
		return out
	}
	to.BlkioThrottleReadBpsDevice = throttles(b.ThrottleReadBpsDevice)
	to.BlkioThrottleWriteBpsDevice = throttles(b.ThrottleWriteBpsDevice)
	to.BlkioThrottleReadIOPSDevice = throttles(b.ThrottleReadIOPSDevice)
	to.BlkioThrottleWriteIOPSDevice = throttles(b.ThrottleWriteIOPSDevice)
}

// defaultDevices are the devices that each container may use, as in runc: mknod, which alone grants
// nothing, the default devices by their paths, terminals, and tunnels, which also need a node.
var defaultDevices = []struct {
	path string
	devices.Rule
}{
	{"", devices.Rule{Type: 'c', Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "m"}},
	{"", devices.Rule{Type: 'b', Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "m"}},
	{"/dev/null", devices.Rule{Type: 'c', Major: 1, Minor: 3, Permissions: "rwm"}},
	{"/dev/zero", devices.Rule{Type: 'c', Major: 1, Minor: 5, Permissions: "rwm"}},
	{"/dev/full", devices.Rule{Type: 'c', Major: 1, Minor: 7, Permissions: "rwm"}},
	{"/dev/random", devices.Rule{Type: 'c', Major: 1, Minor: 8, Permissions: "rwm"}},
	{"/dev/urandom", devices.Rule{Type: 'c', Major: 1, Minor: 9, Permissions: "rwm"}},
	{"/dev/tty", devices.Rule{Type: 'c', Major: 5, Minor: 0, Permissions: "rwm"}},
	{"", devices.Rule{Type: 'c', Major: 136, Minor: devices.Wildcard, Permissions: "rwm"}},
	{"", devices.Rule{Type: 'c', Major: 5, Minor: 2, Permissions: "rwm"}},
	{"", devices.Rule{Type: 'c', Major: 10, Minor: 200, Permissions: "rwm"}},
}

// deviceRules returns the rules of a specification, and then the defaults, except those that
// devices of the specification replace. Without a matching rule, access is denied.
func deviceRules(spec *specs.Spec) []*devices.Rule {
	var rules []*devices.Rule
	if spec.Linux.Resources != nil {
		for _, d := range spec.Linux.Resources.Devices {
			r := devices.Rule{Type: devices.WildcardDevice, Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: devices.Permissions(d.Access), Allow: d.Allow}
			if d.Type != "" {
				r.Type = devices.Type(d.Type[0])
			}
			set(&r.Major, d.Major)
			set(&r.Minor, d.Minor)
			rules = append(rules, &r)
		}
	}
	for _, d := range defaultDevices {
		if d.path != "" && slices.ContainsFunc(spec.Linux.Devices, func(own specs.LinuxDevice) bool { return own.Path == d.path }) {
			continue
		}
		r := d.Rule
		r.Allow = true
		rules = append(rules, &r)
	}
	return rules
}
