package podconfig

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// runModeReferences is what run mode says about a manifest that refers to an API object.
const runModeReferences = "this pod refers to %s, which only a cluster has: local ConfigMaps, Secrets and other API objects are not supported yet"

// explainReference returns why a pod that refers to the API resource is refused. Under the kubelet's rules the text is that of the
// feature PreventStaticPodAPIReferences.
func explainReference(rule NameRule, resource string) string {
	if rule == MangleNames {
		return "static pods may not reference " + resource
	}
	return fmt.Sprintf(runModeReferences, resource)
}

// findAPIReference returns the first kind of API object that the pod refers to, as the kubelet names it, or "".
func findAPIReference(spec *v1.PodSpec) string {
	if spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	if len(spec.ImagePullSecrets) > 0 {
		return "secrets"
	}
	for _, containers := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if r := findEnvReference(&containers[i]); r != "" {
				return r
			}
		}
	}
	if len(spec.ResourceClaims) > 0 {
		return "resourceclaims"
	}
	for i := range spec.Volumes {
		if r := findVolumeReference(&spec.Volumes[i].VolumeSource); r != "" {
			return r
		}
	}
	return ""
}

func findEnvReference(c *v1.Container) string {
	for _, e := range c.EnvFrom {
		if e.SecretRef != nil {
			return "secrets"
		}
		if e.ConfigMapRef != nil {
			return "configmaps"
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if e.ValueFrom.SecretKeyRef != nil {
			return "secrets"
		}
		if e.ValueFrom.ConfigMapKeyRef != nil {
			return "configmaps"
		}
	}
	return ""
}

func findVolumeReference(v *v1.VolumeSource) string {
	switch {
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)"
	case v.Secret != nil:
		return "secrets (via secret volumes)"
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.AzureFile != nil:
		return "secrets (via azureFile volumes)"
	case v.CephFS != nil && v.CephFS.SecretRef != nil,
		v.Cinder != nil && v.Cinder.SecretRef != nil,
		v.FlexVolume != nil && v.FlexVolume.SecretRef != nil,
		v.ISCSI != nil && v.ISCSI.SecretRef != nil,
		v.RBD != nil && v.RBD.SecretRef != nil,
		v.ScaleIO != nil && v.ScaleIO.SecretRef != nil,
		v.StorageOS != nil && v.StorageOS.SecretRef != nil:
		return "secrets"
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if r := findProjectionReference(&v.Projected.Sources[i]); r != "" {
				return r
			}
		}
	}
	return ""
}

func findProjectionReference(p *v1.VolumeProjection) string {
	switch {
	case p.ConfigMap != nil:
		return "configmaps (via projected volumes)"
	case p.Secret != nil:
		return "secrets (via projected volumes)"
	case p.ServiceAccountToken != nil:
		return "serviceaccounts (via projected volumes)"
	case p.ClusterTrustBundle != nil:
		return "clustertrustbundles"
	case p.PodCertificate != nil:
		return "podcertificates"
	}
	return ""
}
