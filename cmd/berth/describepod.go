package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// pod writes all but the events. Order and words are those of `kubectl describe pod`.
func (d *describer) pod(p *v1.Pod, now time.Time) {
	d.line(0, "Name:\t%s", p.Name)
	d.line(0, "Namespace:\t%s", p.Namespace)
	if p.Spec.Priority != nil {
		d.line(0, "Priority:\t%d", *p.Spec.Priority)
	}
	d.optional("Priority Class Name:", p.Spec.PriorityClassName)
	if p.Spec.RuntimeClassName != nil {
		d.optional("Runtime Class Name:", *p.Spec.RuntimeClassName)
	}
	d.optional("Service Account:", p.Spec.ServiceAccountName)
	if p.Spec.NodeName == "" {
		d.line(0, "Node:\t<none>")
	} else {
		d.line(0, "Node:\t%s", p.Spec.NodeName+"/"+p.Status.HostIP)
	}
	if p.Status.StartTime != nil {
		d.line(0, "Start Time:\t%s", p.Status.StartTime.Format(time.RFC1123Z))
	}
	d.several("Labels:", sortedLabels(p.Labels))
	d.several("Annotations:", annotationLines(p.Annotations))
	d.status(p, now)
	if p.Spec.SecurityContext != nil {
		d.seccomp(0, p.Spec.SecurityContext.SeccompProfile)
	}
	d.line(0, "IP:\t%s", p.Status.PodIP)
	if len(p.Status.PodIPs) == 0 {
		d.line(0, "IPs:\t<none>")
	} else {
		d.line(0, "IPs:")
		for _, ip := range p.Status.PodIPs {
			d.line(1, "IP:\t%s", ip.IP)
		}
	}
	if o := metav1.GetControllerOf(p); o != nil {
		d.line(0, "Controlled By:\t%s", o.Kind+"/"+o.Name)
	}
	d.optional("NominatedNodeName:", p.Status.NominatedNodeName)
	if p.Spec.Resources != nil {
		d.line(0, "Resources:")
		d.resources(1, p.Spec.Resources)
	}
	d.containers(p)
	d.conditions(p)
	d.volumes(p.Spec.Volumes)
	d.line(0, "QoS Class:\t%s", string(p.Status.QOSClass))
	d.several("Node-Selectors:", sortedLabels(p.Spec.NodeSelector))
	d.several("Tolerations:", tolerationLines(p.Spec.Tolerations))
}

// optional writes a line if there is something to say.
func (d *describer) optional(title, value string) {
	if value != "" {
		d.line(0, title+"\t%s", value)
	}
}

func (d *describer) status(p *v1.Pod, now time.Time) {
	if p.DeletionTimestamp != nil && !pod.IsTerminal(p.Status.Phase) {
		d.line(0, "Status:\tTerminating (lasts %s)", duration.HumanDuration(now.Sub(p.DeletionTimestamp.Time)))
		if g := p.DeletionGracePeriodSeconds; g != nil {
			d.line(0, "Termination Grace Period:\t%ds", *g)
		}
	} else {
		d.line(0, "Status:\t%s", string(p.Status.Phase))
	}
	d.optional("Reason:", p.Status.Reason)
	if p.Status.Message != "" {
		d.paragraph(0, "Message:", p.Status.Message)
	}
}

func (d *describer) seccomp(indent int, p *v1.SeccompProfile) {
	if p == nil {
		return
	}
	d.line(indent, "SeccompProfile:\t%s", string(p.Type))
	if p.Type == v1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil {
		d.line(indent, "LocalhostProfile:\t%s", *p.LocalhostProfile)
	}
}

func (d *describer) conditions(p *v1.Pod) {
	if len(p.Spec.ReadinessGates) > 0 {
		d.line(0, "Readiness Gates:")
		d.line(1, "Type\tStatus")
		for _, g := range p.Spec.ReadinessGates {
			status := "<none>"
			for _, c := range p.Status.Conditions {
				if c.Type == g.ConditionType {
					status = string(c.Status)
				}
			}
			d.line(1, "%s \t%s ", string(g.ConditionType), status)
		}
	}
	if len(p.Status.Conditions) == 0 {
		return
	}
	d.line(0, "Conditions:")
	d.line(1, "Type\tStatus")
	for _, c := range p.Status.Conditions {
		d.line(1, "%s \t%s ", string(c.Type), string(c.Status))
	}
}

func tolerationLines(list []v1.Toleration) []string {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b v1.Toleration) int { return strings.Compare(a.Key, b.Key) })
	var lines []string
	for _, t := range list {
		s := t.Key
		if t.Value != "" {
			s += "=" + t.Value
		}
		if t.Effect != "" {
			s += ":" + string(t.Effect)
		}
		if t.Operator == v1.TolerationOpExists && t.Value == "" {
			s = strings.TrimPrefix(s+" op=Exists", " ")
		}
		if t.TolerationSeconds != nil {
			s += fmt.Sprintf(" for %ds", *t.TolerationSeconds)
		}
		lines = append(lines, s)
	}
	return lines
}

// volumes writes what each volume is; of kinds that a node seldom sees, the kind alone.
func (d *describer) volumes(list []v1.Volume) {
	if len(list) == 0 {
		d.line(0, "Volumes:\t<none>")
		return
	}
	d.line(0, "Volumes:")
	for i := range list {
		d.line(1, "%s:", list[i].Name)
		d.volume(&list[i].VolumeSource)
	}
}

// pair prints one property of a volume.
func (d *describer) pair(name string, value any) { d.line(2, name+":\t%v", value) }

// projected prints one source of a projected volume.
func (d *describer) projected(s *v1.VolumeProjection) {
	switch {
	case s.Secret != nil:
		d.pair("SecretName", s.Secret.Name)
		d.pair("Optional", ptr.Deref(s.Secret.Optional, false))
	case s.DownwardAPI != nil:
		d.pair("DownwardAPI", true)
	case s.ConfigMap != nil:
		d.pair("ConfigMapName", s.ConfigMap.Name)
		d.pair("Optional", ptr.Deref(s.ConfigMap.Optional, false))
	case s.ServiceAccountToken != nil:
		d.pair("TokenExpirationSeconds", ptr.Deref(s.ServiceAccountToken.ExpirationSeconds, 0))
	}
}

func (d *describer) volume(s *v1.VolumeSource) {
	pair, isSet := d.pair, func(b *bool) bool { return ptr.Deref(b, false) }
	switch {
	case s.HostPath != nil:
		kind := "<none>"
		if s.HostPath.Type != nil {
			kind = string(*s.HostPath.Type)
		}
		pair("Type", "HostPath (bare host directory volume)")
		pair("Path", s.HostPath.Path)
		pair("HostPathType", kind)
	case s.EmptyDir != nil:
		limit := "<unset>"
		if l := s.EmptyDir.SizeLimit; l != nil && !l.IsZero() {
			limit = l.String()
		}
		pair("Type", "EmptyDir (a temporary directory that shares a pod's lifetime)")
		pair("Medium", string(s.EmptyDir.Medium))
		pair("SizeLimit", limit)
	case s.Secret != nil:
		pair("Type", "Secret (a volume populated by a Secret)")
		pair("SecretName", s.Secret.SecretName)
		pair("Optional", isSet(s.Secret.Optional))
	case s.ConfigMap != nil:
		pair("Type", "ConfigMap (a volume populated by a ConfigMap)")
		pair("Name", s.ConfigMap.Name)
		pair("Optional", isSet(s.ConfigMap.Optional))
	case s.Projected != nil:
		pair("Type", "Projected (a volume that contains injected data from multiple sources)")
		for i := range s.Projected.Sources {
			d.projected(&s.Projected.Sources[i])
		}
	case s.DownwardAPI != nil:
		pair("Type", "DownwardAPI (a volume populated by information about the pod)")
		d.line(2, "Items:")
		for _, i := range s.DownwardAPI.Items {
			if i.FieldRef != nil {
				d.line(3, "%s -> %s", i.FieldRef.FieldPath, i.Path)
			}
			if i.ResourceFieldRef != nil {
				d.line(3, "%s -> %s", i.ResourceFieldRef.Resource, i.Path)
			}
		}
	case s.PersistentVolumeClaim != nil:
		pair("Type", "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)")
		pair("ClaimName", s.PersistentVolumeClaim.ClaimName)
		pair("ReadOnly", s.PersistentVolumeClaim.ReadOnly)
	case s.NFS != nil:
		pair("Type", "NFS (an NFS mount that lasts the lifetime of a pod)")
		pair("Server", s.NFS.Server)
		pair("Path", s.NFS.Path)
		pair("ReadOnly", s.NFS.ReadOnly)
	case s.CSI != nil:
		fsType := ""
		if s.CSI.FSType != nil {
			fsType = *s.CSI.FSType
		}
		pair("Type", "CSI (a Container Storage Interface (CSI) volume source)")
		pair("Driver", s.CSI.Driver)
		pair("FSType", fsType)
		pair("ReadOnly", isSet(s.CSI.ReadOnly))
		d.line(2, "VolumeAttributes:%s", map[bool]string{true: "\t<none>"}[len(s.CSI.VolumeAttributes) == 0])
		for _, k := range sortedKeys(s.CSI.VolumeAttributes) {
			d.line(2, "  %s=%s", k, s.CSI.VolumeAttributes[k])
		}
	case s.Image != nil:
		pair("Type", "Image (a container image or OCI artifact)")
		pair("Reference", s.Image.Reference)
		pair("PullPolicy", string(s.Image.PullPolicy))
	case s.Ephemeral != nil:
		pair("Type", "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)")
	default:
		d.line(2, "<unknown>")
	}
}
