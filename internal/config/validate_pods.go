package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

func (c *check) pods() {
	c.atLeast("maxPods", int64(c.MaxPods), 0)
	c.atLeast("podsPerCore", int64(c.PodsPerCore), 0)
	if c.PodsPerCore > c.MaxPods && c.MaxPods >= 0 {
		c.fail("podsPerCore", "%d is more than maxPods, %d", c.PodsPerCore, c.MaxPods)
	}
	c.atLeast("podPidsLimit", *c.PodPidsLimit, -1)
	if c.PodCIDR != "" {
		for cidr := range strings.SplitSeq(c.PodCIDR, ",") {
			if _, err := netip.ParsePrefix(cidr); err != nil {
				c.fail("podCIDR", "%q is no range such as 10.88.0.0/16", cidr)
			}
		}
	}
	for i, server := range c.ClusterDNS {
		if _, err := netip.ParseAddr(server); err != nil {
			c.fail(fmt.Sprintf("clusterDNS[%d]", i), "%q is no IP address", server)
		}
	}
	if c.ClusterDomain != "" {
		for _, problem := range validation.IsDNS1123Subdomain(strings.TrimSuffix(c.ClusterDomain, ".")) {
			c.fail("clusterDomain", "%q: %s", c.ClusterDomain, problem)
		}
	}
	c.oneOf("hairpinMode", c.HairpinMode, "promiscuous-bridge", "hairpin-veth", "none")
	for i, pattern := range c.AllowedUnsafeSysctls {
		if !sysctlPattern.MatchString(pattern) {
			c.fail(fmt.Sprintf("allowedUnsafeSysctls[%d]", i), `%q is no sysctl such as "kernel.sem", nor a pattern such as "net.*"`, pattern)
		}
	}
	period := c.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	if period < time.Second || period > 5*time.Minute {
		c.fail("crashLoopBackOff.maxContainerRestartPeriod", "%v is not between 1s and 5m", period)
	}
	if n := *c.UserNamespaces.IDsPerPod; n < 65536 || n%65536 != 0 || n >= 1<<32 {
		c.fail("userNamespaces.idsPerPod", "%d is no multiple of 65536 below 4294967296", n)
	}
}

// sysctlPattern matches a name separated by dots or slashes; the last character may be an asterisk.
var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?(\*|[a-z0-9])$`)
