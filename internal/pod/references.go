package pod

import v1 "k8s.io/api/core/v1"

// ReferenceUse is when an object that a pod refers to is read.
type ReferenceUse int

const (
	// ReadAtStart: the object is read when a container starts, for environment variables, image
	// pulls and volume drivers.
	ReadAtStart ReferenceUse = iota
	// Mounted: the object is mounted as a volume, which follows its changes.
	Mounted
)

// References returns the names of the ConfigMaps and Secrets that the pod refers to in its
// namespace: in imagePullSecrets, the environment of all containers, and volumes.
func References(p *v1.Pod) (configMaps, secrets map[string]ReferenceUse) {
	configMaps, secrets = map[string]ReferenceUse{}, map[string]ReferenceUse{}
	add := func(to map[string]ReferenceUse, name string, u ReferenceUse) {
		if name != "" {
			to[name] = max(to[name], u)
		}
	}
	for _, s := range p.Spec.ImagePullSecrets {
		add(secrets, s.Name, ReadAtStart)
	}
	environment := func(from []v1.EnvFromSource, env []v1.EnvVar) {
		for _, f := range from {
			if f.ConfigMapRef != nil {
				add(configMaps, f.ConfigMapRef.Name, ReadAtStart)
			}
			if f.SecretRef != nil {
				add(secrets, f.SecretRef.Name, ReadAtStart)
			}
		}
		for _, e := range env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add(configMaps, r.Name, ReadAtStart)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add(secrets, r.Name, ReadAtStart)
			}
		}
	}
	for c := range Containers(&p.Spec) {
		environment(c.EnvFrom, c.Env)
	}
	for i := range p.Spec.EphemeralContainers {
		environment(p.Spec.EphemeralContainers[i].EnvFrom, p.Spec.EphemeralContainers[i].Env)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			add(configMaps, v.ConfigMap.Name, Mounted)
		case v.Secret != nil:
			add(secrets, v.Secret.SecretName, Mounted)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					add(configMaps, s.ConfigMap.Name, Mounted)
				}
				if s.Secret != nil {
					add(secrets, s.Secret.Name, Mounted)
				}
			}
		default:
			add(secrets, driverSecret(v), ReadAtStart)
		}
	}
	return configMaps, secrets
}

// driverSecret returns the Secret of the volume's driver, or "".
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
