package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Unsupported returns the paths of the pod's fields that this version does not carry out. Volumes are the business of volumes.Unsupported.
func Unsupported(p *v1.Pod) []string {
	var out []string
	is := func(set bool, format string, args ...any) {
		if set {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	s := &p.Spec
	is(len(s.ResourceClaims) > 0, "spec.resourceClaims")
	is(len(s.ImagePullSecrets) > 0, "spec.imagePullSecrets")
	is(s.HostUsers != nil && !*s.HostUsers, "spec.hostUsers: false")
	is(s.RuntimeClassName != nil, "spec.runtimeClassName")
	is(s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN, "spec.setHostnameAsFQDN")
	is(s.Subdomain != "", "spec.subdomain")
	is(s.DNSConfig != nil && s.DNSPolicy != v1.DNSNone, "spec.dnsConfig with dnsPolicy %s", s.DNSPolicy)
	is(s.Resources != nil, "spec.resources")
	for i := range s.InitContainers {
		out = append(out, unsupportedOf(fmt.Sprintf("spec.initContainers[%d]", i), &s.InitContainers[i])...)
	}
	for i := range s.Containers {
		out = append(out, unsupportedOf(fmt.Sprintf("spec.containers[%d]", i), &s.Containers[i])...)
	}
	return out
}

func unsupportedOf(path string, c *v1.Container) []string {
	var out []string
	is := func(set bool, field string) {
		if set {
			out = append(out, path+"."+field)
		}
	}
	for i := range c.Env {
		f := c.Env[i].ValueFrom
		is(f != nil && f.FileKeyRef != nil, fmt.Sprintf("env[%d].valueFrom.fileKeyRef", i))
	}
	is(len(c.VolumeDevices) > 0, "volumeDevices")
	is(len(c.Resources.Claims) > 0, "resources.claims")
	for i := range c.VolumeMounts {
		is(c.VolumeMounts[i].RecursiveReadOnly != nil && *c.VolumeMounts[i].RecursiveReadOnly == v1.RecursiveReadOnlyEnabled, fmt.Sprintf("volumeMounts[%d].recursiveReadOnly Enabled", i))
	}
	if sc := c.SecurityContext; sc != nil {
		is(sc.AppArmorProfile != nil && sc.AppArmorProfile.Type == v1.AppArmorProfileTypeLocalhost, "securityContext.appArmorProfile Localhost")
	}
	return out
}
