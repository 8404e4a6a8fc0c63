package objects

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// use is what a pod refers to an object for.
type use int

const (
	atStart use = iota // read when a container starts
	live               // shown in a volume, and so to be followed
)

// References returns the names of the ConfigMaps and Secrets that the pod refers to, all of its own
// namespace, in no order.
func References(p *v1.Pod) (configMaps, secrets []string) {
	m, s := references(p)
	return slices.Collect(maps.Keys(m)), slices.Collect(maps.Keys(s))
}

// references returns the names of the ConfigMaps and Secrets that the pod refers to, all of its own
// namespace: imagePullSecrets, environment of all containers, volumes.
func references(p *v1.Pod) (configMaps, secrets map[string]use) {
	configMaps, secrets = map[string]use{}, map[string]use{}
	add := func(to map[string]use, name string, u use) {
		if name != "" {
			to[name] = max(to[name], u)
		}
	}
	for _, s := range p.Spec.ImagePullSecrets {
		add(secrets, s.Name, atStart)
	}
	environment := func(from []v1.EnvFromSource, env []v1.EnvVar) {
		for _, f := range from {
			if f.ConfigMapRef != nil {
				add(configMaps, f.ConfigMapRef.Name, atStart)
			}
			if f.SecretRef != nil {
				add(secrets, f.SecretRef.Name, atStart)
			}
		}
		for _, e := range env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add(configMaps, r.Name, atStart)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add(secrets, r.Name, atStart)
			}
		}
	}
	for c := range pod.Containers(&p.Spec) {
		environment(c.EnvFrom, c.Env)
	}
	for i := range p.Spec.EphemeralContainers {
		environment(p.Spec.EphemeralContainers[i].EnvFrom, p.Spec.EphemeralContainers[i].Env)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			add(configMaps, v.ConfigMap.Name, live)
		case v.Secret != nil:
			add(secrets, v.Secret.SecretName, live)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					add(configMaps, s.ConfigMap.Name, live)
				}
				if s.Secret != nil {
					add(secrets, s.Secret.Name, live)
				}
			}
		default:
			add(secrets, driverSecret(v), atStart)
		}
	}
	return configMaps, secrets
}

// classOf returns the name of the pod's RuntimeClass, if it names one. A pod whose class is missing
// is told when it comes.
func classOf(p *v1.Pod) map[string]use {
	if name := p.Spec.RuntimeClassName; name != nil && *name != "" {
		return map[string]use{*name: atStart}
	}
	return nil
}

// driverSecret returns the Secret that the volume's driver is given, or "".
func driverSecret(v *v1.Volume) string {
	var ref *v1.LocalObjectReference
	switch {
	case v.AzureFile != nil:
		return v.AzureFile.SecretName
	case v.CSI != nil:
		ref = v.CSI.NodePublishSecretRef
	case v.ISCSI != nil:
		ref = v.ISCSI.SecretRef
	case v.FlexVolume != nil:
		ref = v.FlexVolume.SecretRef
	case v.CephFS != nil:
		ref = v.CephFS.SecretRef
	case v.Cinder != nil:
		ref = v.Cinder.SecretRef
	case v.RBD != nil:
		ref = v.RBD.SecretRef
	case v.ScaleIO != nil:
		ref = v.ScaleIO.SecretRef
	case v.StorageOS != nil:
		ref = v.StorageOS.SecretRef
	}
	if ref == nil {
		return ""
	}
	return ref.Name
}
