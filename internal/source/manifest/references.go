package manifest

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/pod"
)

// findClusterReferences returns the references to objects that only a cluster has, each with an
// alternative. ConfigMaps, Secrets and claims are not among them: manifests define them in run
// mode, possibly after the pod.
func findClusterReferences(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	const (
		noTokens = "needs an API server, which issues the tokens: remove it"
		instead  = "use a volume of type hostPath or emptyDir"
	)
	var errs field.ErrorList
	forbid := func(path *field.Path, detail string) { errs = append(errs, field.Forbidden(path, detail)) }
	if spec.ServiceAccountName != "" {
		forbid(path.Child("serviceAccountName"), noTokens)
	}
	if len(spec.ResourceClaims) > 0 {
		forbid(path.Child("resourceClaims"), "needs the scheduler of a cluster, which allocates claims: remove it")
	}
	for i := range spec.Volumes {
		v, at := &spec.Volumes[i], path.Child("volumes").Index(i)
		switch {
		case v.Glusterfs != nil:
			forbid(at.Child("glusterfs"), "needs the Endpoints of a cluster: "+instead)
		case v.Ephemeral != nil:
			forbid(at.Child("ephemeral"), "needs the controllers of a cluster, which make the claim: "+instead)
		case v.Projected != nil:
			for j := range v.Projected.Sources {
				s, at := &v.Projected.Sources[j], at.Child("projected", "sources").Index(j)
				switch {
				case s.ServiceAccountToken != nil:
					forbid(at.Child("serviceAccountToken"), noTokens)
				case s.PodCertificate != nil:
					forbid(at.Child("podCertificate"), "needs an API server, which issues the certificate: remove it")
				}
			}
		}
	}
	return errs
}

// findAPIReference returns the first kind of API object that the pod refers to, in the kubelet's
// wording, or "". The kubelet does not allow such references in static pods.
func findAPIReference(spec *v1.PodSpec) string {
	if spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	if len(spec.ImagePullSecrets) > 0 {
		return "secrets"
	}
	for c := range pod.Containers(spec) {
		if r := findEnvReference(c); r != "" {
			return r
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
