package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

func validatePods(c *check, k *Kubelet) {
	c.atLeast("maxPods", int64(k.MaxPods), 0)
	c.atLeast("podsPerCore", int64(k.PodsPerCore), 0)
	if k.PodsPerCore > k.MaxPods && k.MaxPods >= 0 {
		c.fail("podsPerCore", "%d is more than maxPods, %d", k.PodsPerCore, k.MaxPods)
	}
	c.atLeast("podPidsLimit", *k.PodPidsLimit, -1)
	if k.PodCIDR != "" {
		for cidr := range strings.SplitSeq(k.PodCIDR, ",") {
			if _, err := netip.ParsePrefix(cidr); err != nil {
				c.fail("podCIDR", "%q is no range such as 10.88.0.0/16", cidr)
			}
		}
	}
	for i, server := range k.ClusterDNS {
		if _, err := netip.ParseAddr(server); err != nil {
			c.fail(fmt.Sprintf("clusterDNS[%d]", i), "%q is no IP address", server)
		}
	}
	if k.ClusterDomain != "" {
		for _, problem := range validation.IsDNS1123Subdomain(strings.TrimSuffix(k.ClusterDomain, ".")) {
			c.fail("clusterDomain", "%q: %s", k.ClusterDomain, problem)
		}
	}
	c.oneOf("hairpinMode", k.HairpinMode, "promiscuous-bridge", "hairpin-veth", "none")
	for i, pattern := range k.AllowedUnsafeSysctls {
		if !sysctlPattern.MatchString(pattern) {
			c.fail(fmt.Sprintf("allowedUnsafeSysctls[%d]", i), `%q is no sysctl such as "kernel.sem", nor a pattern such as "net.*"`, pattern)
		}
	}
	period := k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	if period < time.Second || period > 5*time.Minute {
		c.fail("crashLoopBackOff.maxContainerRestartPeriod", "%v is not between 1s and 5m", period)
	}
	if n := *k.UserNamespaces.IDsPerPod; n < 65536 || n%65536 != 0 || n >= 1<<32 {
		c.fail("userNamespaces.idsPerPod", "%d is no multiple of 65536 below 4294967296", n)
	}
}

// sysctlPattern matches a name separated by dots or slashes; the last character may be an asterisk.
var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?(\*|[a-z0-9])$`)
