package main

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

func (d *describer) containers(p *v1.Pod) {
	if len(p.Spec.InitContainers) > 0 {
		d.line(0, "Init Containers:")
		for i := range p.Spec.InitContainers {
			d.container(p, &p.Spec.InitContainers[i], p.Status.InitContainerStatuses)
		}
	}
	d.line(0, "Containers:")
	for i := range p.Spec.Containers {
		d.container(p, &p.Spec.Containers[i], p.Status.ContainerStatuses)
	}
	if len(p.Spec.EphemeralContainers) > 0 {
		d.line(0, "Ephemeral Containers:")
		for i := range p.Spec.EphemeralContainers {
			c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			d.container(p, &c, p.Status.EphemeralContainerStatuses)
		}
	}
}

func (d *describer) container(p *v1.Pod, c *v1.Container, statuses []v1.ContainerStatus) {
	d.line(1, "%s:", c.Name)
	var status *v1.ContainerStatus
	if i := slices.IndexFunc(statuses, func(s v1.ContainerStatus) bool { return s.Name == c.Name }); i >= 0 {
		status = &statuses[i]
		d.line(2, "Container ID:\t%s", status.ContainerID)
	}
	d.line(2, "Image:\t%s", c.Image)
	if status != nil {
		d.line(2, "Image ID:\t%s", status.ImageID)
	}
	d.ports("Port", c.Ports, func(p v1.ContainerPort) int32 { return p.ContainerPort })
	d.ports("Host Port", c.Ports, func(p v1.ContainerPort) int32 { return p.HostPort })
	if c.SecurityContext != nil {
		d.seccomp(2, c.SecurityContext.SeccompProfile)
	}
	d.words("Command:", c.Command)
	d.words("Args:", c.Args)
	if status != nil {
		d.state("State", status.State)
		if status.LastTerminationState.Terminated != nil {
			d.state("Last State", status.LastTerminationState)
		}
		d.line(2, "Ready:\t%s", map[bool]string{true: "True", false: "False"}[status.Ready])
		d.line(2, "Restart Count:\t%d", status.RestartCount)
	}
	d.resources(2, &c.Resources)
	if h, ok := d.assigned.Of(p.UID, c.Name); ok {
		d.held(h)
	}
	d.probe("Liveness", c.LivenessProbe)
	d.probe("Readiness", c.ReadinessProbe)
	d.probe("Startup", c.StartupProbe)
	d.environment(p, c)
	d.mounts(c)
}

func (d *describer) ports(title string, list []v1.ContainerPort, number func(v1.ContainerPort) int32) {
	var all []string
	for _, p := range list {
		s := fmt.Sprintf("%d/%s", number(p), cmp.Or(p.Protocol, v1.ProtocolTCP))
		if p.Name != "" {
			s += " (" + p.Name + ")"
		}
		all = append(all, s)
	}
	if len(all) > 1 {
		title += "s"
	}
	d.line(2, title+":\t%s", cmp.Or(strings.Join(all, ", "), "<none>"))
}

func (d *describer) words(title string, words []string) {
	if len(words) == 0 {
		return
	}
	d.line(2, title)
	for _, w := range words {
		for l := range strings.SplitSeq(w, "\n") {
			d.line(3, "%s", l)
		}
	}
}

func (d *describer) state(title string, s v1.ContainerState) {
	pair := func(name, value string) {
		if value != "" {
			d.line(3, name+":\t%s", value)
		}
	}
	switch {
	case s.Running != nil:
		d.line(2, title+":\tRunning")
		pair("Started", s.Running.StartedAt.Format(time.RFC1123Z))
	case s.Terminated != nil:
		d.line(2, title+":\tTerminated")
		pair("Reason", s.Terminated.Reason)
		if s.Terminated.Message != "" {
			d.paragraph(3, "Message:", s.Terminated.Message)
		}
		d.line(3, "Exit Code:\t%d", s.Terminated.ExitCode)
		if s.Terminated.Signal > 0 {
			d.line(3, "Signal:\t%d", s.Terminated.Signal)
		}
		pair("Started", s.Terminated.StartedAt.Format(time.RFC1123Z))
		pair("Finished", s.Terminated.FinishedAt.Format(time.RFC1123Z))
	default:
		d.line(2, title+":\tWaiting")
		if s.Waiting != nil {
			pair("Reason", s.Waiting.Reason)
		}
	}
}

func (d *describer) resources(indent int, r *v1.ResourceRequirements) {
	for _, part := range []struct {
		title string
		list  v1.ResourceList
	}{{"Limits:", r.Limits}, {"Requests:", r.Requests}} {
		if len(part.list) == 0 {
			continue
		}
		d.line(indent, part.title)
		for _, name := range sortedKeys(part.list) {
			q := part.list[name]
			d.line(indent+1, "%s:\t%s", string(name), q.String())
		}
	}
}

func (d *describer) probe(title string, p *v1.Probe) {
	if p == nil {
		return
	}
	what := "unknown"
	switch h := p.ProbeHandler; {
	case h.Exec != nil:
		what = fmt.Sprintf("exec %v", h.Exec.Command)
	case h.HTTPGet != nil:
		u := url.URL{Scheme: strings.ToLower(string(h.HTTPGet.Scheme)), Host: net.JoinHostPort(h.HTTPGet.Host, h.HTTPGet.Port.String()), Path: h.HTTPGet.Path}
		what = "http-get " + u.String()
	case h.TCPSocket != nil:
		what = "tcp-socket " + h.TCPSocket.Host + ":" + h.TCPSocket.Port.String()
	case h.GRPC != nil:
		service := ""
		if h.GRPC.Service != nil {
			service = *h.GRPC.Service
		}
		what = fmt.Sprintf("grpc <pod>:%d %s", h.GRPC.Port, service)
	}
	d.line(2, title+":\t%s delay=%ds timeout=%ds period=%ds #success=%d #failure=%d", what,
		p.InitialDelaySeconds, p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold)
}

func (d *describer) environment(p *v1.Pod, c *v1.Container) {
	isSet := func(b *bool) bool { return b != nil && *b }
	if len(c.EnvFrom) > 0 {
		d.line(2, "Environment Variables from:")
	}
	for _, e := range c.EnvFrom {
		kind, name, optional := "ConfigMap", "", false
		switch {
		case e.ConfigMapRef != nil:
			name, optional = e.ConfigMapRef.Name, isSet(e.ConfigMapRef.Optional)
		case e.SecretRef != nil:
			kind, name, optional = "Secret", e.SecretRef.Name, isSet(e.SecretRef.Optional)
		}
		if e.Prefix != "" {
			kind += " with prefix '" + e.Prefix + "'"
		}
		d.line(3, "%s\t%s\tOptional: %t", name, kind, optional)
	}
	if len(c.Env) == 0 {
		d.line(2, "Environment:\t<none>")
		return
	}
	d.line(2, "Environment:")
	for _, e := range c.Env {
		switch f := e.ValueFrom; {
		case f == nil:
			name := e.Name + ":"
			for l := range strings.SplitSeq(e.Value, "\n") {
				d.line(3, "%s\t%s", name, l)
				name = ""
			}
		case f.FieldRef != nil:
			d.line(3, "%s:\t%s (%s:%s)", e.Name, fieldOf(p, f.FieldRef.FieldPath), f.FieldRef.APIVersion, f.FieldRef.FieldPath)
		case f.ResourceFieldRef != nil:
			d.line(3, "%s:\t%s (%s)", e.Name, resourceOf(p, c, f.ResourceFieldRef), f.ResourceFieldRef.Resource)
		case f.SecretKeyRef != nil:
			d.line(3, "%s:\t<set to the key '%s' in secret '%s'>\tOptional: %t", e.Name, f.SecretKeyRef.Key, f.SecretKeyRef.Name, isSet(f.SecretKeyRef.Optional))
		case f.ConfigMapKeyRef != nil:
			d.line(3, "%s:\t<set to the key '%s' of config map '%s'>\tOptional: %t", e.Name, f.ConfigMapKeyRef.Key, f.ConfigMapKeyRef.Name, isSet(f.ConfigMapKeyRef.Optional))
		case f.FileKeyRef != nil:
			d.line(3, "%s:\t<set to the key '%s' of file '%s' in volume '%s'>\tOptional: %t", e.Name, f.FileKeyRef.Key, f.FileKeyRef.Path, f.FileKeyRef.VolumeName, isSet(f.FileKeyRef.Optional))
		}
	}
}

// fieldOf is the value of a field of the metadata; of others, which change, nothing is said.
func fieldOf(p *v1.Pod, path string) string {
	if key, ok := strings.CutPrefix(path, "metadata.labels['"); ok {
		return p.Labels[strings.TrimSuffix(key, "']")]
	}
	if key, ok := strings.CutPrefix(path, "metadata.annotations['"); ok {
		return p.Annotations[strings.TrimSuffix(key, "']")]
	}
	return map[string]string{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "metadata.uid": string(p.UID)}[path]
}

// resourceOf is the amount that a container has, in units of the divisor; a limit that is not set
// is the node's.
func resourceOf(p *v1.Pod, c *v1.Container, r *v1.ResourceFieldSelector) string {
	if named := pod.FindContainer(&p.Spec, r.ContainerName); named != nil {
		c = named
	}
	kind, name, _ := strings.Cut(r.Resource, ".")
	amounts := c.Resources.Limits
	if kind == "requests" {
		amounts = c.Resources.Requests
	}
	q, ok := amounts[v1.ResourceName(name)]
	switch divisor := r.Divisor; {
	case !ok && kind == "limits":
		return "node allocatable"
	case name == string(v1.ResourceCPU):
		unit := cmp.Or(divisor.MilliValue(), 1000)
		return fmt.Sprint((q.MilliValue() + unit - 1) / unit)
	default:
		unit := cmp.Or(divisor.Value(), 1)
		return fmt.Sprint((q.Value() + unit - 1) / unit)
	}
}

func (d *describer) mounts(c *v1.Container) {
	if len(c.VolumeMounts) == 0 {
		d.line(2, "Mounts:\t<none>")
	} else {
		d.line(2, "Mounts:")
	}
	for _, m := range slices.SortedFunc(slices.Values(c.VolumeMounts), func(a, b v1.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) }) {
		how := "rw"
		if m.ReadOnly {
			how = "ro"
		}
		if m.SubPath != "" {
			how += fmt.Sprintf(",path=%q", m.SubPath)
		}
		d.line(3, "%s from %s (%s)", m.MountPath, m.Name, how)
	}
	if len(c.VolumeDevices) > 0 {
		d.line(2, "Devices:")
	}
	for _, v := range slices.SortedFunc(slices.Values(c.VolumeDevices), func(a, b v1.VolumeDevice) int { return strings.Compare(a.DevicePath, b.DevicePath) }) {
		d.line(3, "%s from %s", v.DevicePath, v.Name)
	}
}
