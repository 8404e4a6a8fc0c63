package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

func validateCgroups(c *check, k *Kubelet) {
	c.oneOf("cgroupDriver", k.CgroupDriver, "cgroupfs", "systemd")
	for _, f := range []struct{ path, cgroup string }{
		{"cgroupRoot", k.CgroupRoot},
		{"kubeletCgroups", k.KubeletCgroups},
		{"systemCgroups", k.SystemCgroups},
		{"systemReservedCgroup", k.SystemReservedCgroup},
		{"kubeReservedCgroup", k.KubeReservedCgroup},
		{"--runtime-cgroups", k.RuntimeCgroups},
	} {
		if strings.ContainsAny(f.cgroup, "\x00\n") || slices.Contains(strings.Split(f.cgroup, "/"), "..") {
			c.fail(f.path, `%q is no name of a cgroup, such as "/system.slice"`, f.cgroup)
		}
	}
	if k.SystemCgroups != "" && k.CgroupRoot == "" {
		c.fail("systemCgroups", "needs cgroupRoot")
	}
	if k.SystemCgroups != "" && strings.Trim(k.SystemCgroups, "/") == "" {
		c.fail("systemCgroups", `%q is the cgroup that processes are moved out of; name another, such as "/system"`, k.SystemCgroups)
	}
	if d := k.CPUCFSQuotaPeriod.Duration; d < time.Millisecond || d > time.Second {
		c.fail("cpuCFSQuotaPeriod", "%v is not between 1ms and 1s", d)
	}
	c.oneOf("memorySwap.swapBehavior", k.MemorySwap.SwapBehavior, "", "NoSwap", "LimitedSwap")
	if f := *k.MemoryThrottlingFactor; f <= 0 || f > 1 {
		c.fail("memoryThrottlingFactor", "%v is not more than 0 and at most 1", f)
	}
	c.oneOf("memoryReservationPolicy", string(k.MemoryReservationPolicy),
		string(NoneMemoryReservationPolicy), string(TieredReservationMemoryReservationPolicy))
	if k.MemoryReservationPolicy == TieredReservationMemoryReservationPolicy {
		c.needsGate("memoryReservationPolicy", "MemoryQoS")
	}
	for _, name := range slices.Sorted(maps.Keys(k.QOSReserved)) {
		path := fmt.Sprintf("qosReserved[%s]", name)
		c.needsGate(path, "QOSReserved")
		if name != string(v1.ResourceMemory) {
			c.fail(path, "only memory can be reserved by QoS class")
		}
		percent, isPercent := strings.CutSuffix(k.QOSReserved[name], "%")
		if n, err := strconv.Atoi(percent); !isPercent || err != nil || n < 0 || n > 100 {
			c.fail(path, `%q is no percentage from "0%%" to "100%%"`, k.QOSReserved[name])
		}
	}
}

// validateReservations checks the reservations for the host, and their enforcement.
func validateReservations(c *check, k *Kubelet) {
	c.reserved("systemReserved", k.SystemReserved)
	c.reserved("kubeReserved", k.KubeReserved)
	if k.ReservedSystemCPUs != "" {
		if _, err := cpuset.Parse(k.ReservedSystemCPUs); err != nil {
			c.fail("reservedSystemCPUs", `%q is no list of CPUs such as "0-1,8"`, k.ReservedSystemCPUs)
		}
		if k.SystemReservedCgroup != "" || k.KubeReservedCgroup != "" {
			c.fail("reservedSystemCPUs", "excludes systemReservedCgroup and kubeReservedCgroup")
		}
	}

	enforced := k.EnforceNodeAllocatable
	const path = "enforceNodeAllocatable"
	if slices.Contains(enforced, "none") && len(enforced) > 1 {
		c.fail(path, "none excludes the others: %s", strings.Join(enforced, ", "))
	}
	if !*k.CgroupsPerQOS {
		c.fail("cgroupsPerQOS", "false is not supported: pods always have cgroups of their own; set it to true, or leave it out")
	}
	cgroups := map[string]struct{ field, value string }{
		"system-reserved": {"systemReservedCgroup", k.SystemReservedCgroup},
		"kube-reserved":   {"kubeReservedCgroup", k.KubeReservedCgroup},
	}
	for i, level := range enforced {
		at := fmt.Sprintf("%s[%d]", path, i)
		c.oneOf(at, level, "none", "pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible")
		if slices.Index(enforced, level) < i {
			c.fail(at, "%s is there twice", level)
		}
		whole, compressible := strings.CutSuffix(level, "-compressible")
		if compressible && slices.Contains(enforced, whole) {
			c.fail(at, "%s excludes %s", level, whole)
		}
		if cgroup, ok := cgroups[whole]; ok && cgroup.value == "" {
			c.fail(at, "%s needs %s", level, cgroup.field)
		}
	}
}

func (c *check) reserved(field string, resources map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		path := fmt.Sprintf("%s[%s]", field, name)
		switch name {
		case "cpu", "memory", "pid", "ephemeral-storage":
		default:
			c.fail(path, "cannot be reserved; cpu, memory, pid and ephemeral-storage can")
			continue
		}
		if q, ok := c.quantity(path, resources[name]); ok && q.Sign() < 0 {
			c.fail(path, "%s is negative", resources[name])
		}
	}
}

func (c *check) quantity(path, value string) (resource.Quantity, bool) {
	q, err := resource.ParseQuantity(value)
	if err != nil {
		c.fail(path, `%q is no quantity, such as "100Mi" or "500m"`, value)
	}
	return q, err == nil
}

func validateTopology(c *check, k *Kubelet) {
	c.oneOf("cpuManagerPolicy", k.CPUManagerPolicy, "none", "static")
	c.positive("cpuManagerReconcilePeriod", k.CPUManagerReconcilePeriod.Duration)
	if k.CPUManagerPolicy == "static" && k.ReservedSystemCPUs == "" && !reservesForHost(k, "cpu") {
		c.fail("cpuManagerPolicy", "static needs CPUs for the host: set reservedSystemCPUs, or cpu in systemReserved or kubeReserved")
	}
	c.options("cpuManagerPolicyOptions", k.CPUManagerPolicyOptions, map[string]string{
		"full-pcpus-only":                  "",
		"strict-cpu-reservation":           "",
		"prefer-align-cpus-by-uncorecache": "",
		"distribute-cpus-across-numa":      "CPUManagerPolicyBetaOptions",
		"align-by-socket":                  "CPUManagerPolicyAlphaOptions",
		"distribute-cpus-across-cores":     "CPUManagerPolicyAlphaOptions",
	})

	c.oneOf("memoryManagerPolicy", k.MemoryManagerPolicy, "None", "Static")
	if k.MemoryManagerPolicy == "Static" && len(k.ReservedMemory) == 0 {
		c.fail("memoryManagerPolicy", "Static needs reservedMemory")
	}
	type reservation struct {
		node int32
		name v1.ResourceName
	}
	seen := map[reservation]bool{}
	for i, m := range k.ReservedMemory {
		path := fmt.Sprintf("reservedMemory[%d]", i)
		c.atLeast(path+".numaNode", int64(m.NumaNode), 0)
		if len(m.Limits) == 0 {
			c.fail(path+".limits", "is empty; name the memory, such as memory: 1Gi")
		}
		for _, name := range slices.Sorted(maps.Keys(m.Limits)) {
			at := fmt.Sprintf("%s.limits[%s]", path, name)
			q := m.Limits[name]
			switch {
			case name != v1.ResourceMemory && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
				c.fail(at, "is no memory; memory and hugepages-<size> are")
			case q.Sign() <= 0:
				c.fail(at, "%s is not more than 0", q.String())
			case seen[reservation{m.NumaNode, name}]:
				c.fail(at, "node %d has this type of memory twice", m.NumaNode)
			}
			seen[reservation{m.NumaNode, name}] = true
		}
	}

	c.oneOf("topologyManagerPolicy", k.TopologyManagerPolicy, "none", "best-effort", "restricted", "single-numa-node")
	c.oneOf("topologyManagerScope", k.TopologyManagerScope, "container", "pod")
	const numaNodes = "max-allowable-numa-nodes"
	c.options("topologyManagerPolicyOptions", k.TopologyManagerPolicyOptions, map[string]string{"prefer-closest-numa-nodes": "", numaNodes: ""})
	if value, ok := k.TopologyManagerPolicyOptions[numaNodes]; ok {
		if n, err := strconv.Atoi(value); err != nil || n < 8 {
			c.fail(fmt.Sprintf("topologyManagerPolicyOptions[%s]", numaNodes), "%q is no number from 8", value)
		}
	}
}

// reservesForHost reports whether the resource is partly reserved for the host.
func reservesForHost(k *Kubelet, name string) bool {
	for _, reserved := range []map[string]string{k.SystemReserved, k.KubeReserved} {
		if q, err := resource.ParseQuantity(reserved[name]); err == nil && q.Sign() > 0 {
			return true
		}
	}
	return false
}

// options checks the names of policy options. known maps options to their gates, "" for none.
func (c *check) options(field string, options, known map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(options)) {
		gate, ok := known[name]
		path := fmt.Sprintf("%s[%s]", field, name)
		switch {
		case !ok:
			c.fail(path, "unknown option; there are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case gate != "":
			c.needsGate(path, gate)
		}
	}
}
