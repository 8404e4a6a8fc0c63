package validation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const maxFileMode int32 = 0o777

// validateVolumes checks the pod's volumes and returns those with a valid name, even if they have
// other errors: each error is reported once.
func validateVolumes(p *v1.Pod, path *field.Path) (map[string]*v1.Volume, field.ErrorList) {
	var all field.ErrorList
	byName := make(map[string]*v1.Volume, len(p.Spec.Volumes))
	for i := range p.Spec.Volumes {
		v, at := &p.Spec.Volumes[i], path.Index(i)
		errs := validateUniqueLabel(v.Name, byName, at.Child("name"))
		if len(errs) == 0 {
			byName[v.Name] = v
		}
		errs = append(errs, validateVolume(v, p, at)...)
		if v.Projected != nil && p.Spec.ServiceAccountName == "" {
			errs = append(errs, forbidTokens(v.Projected, at.Child("projected"))...)
		}
		all = append(all, errs...)
	}
	return byName, all
}

func validateVolume(v *v1.Volume, p *v1.Pod, path *field.Path) field.ErrorList {
	kind, errs := onlyOne(path, "volume type", volumeKinds(&v.VolumeSource)...)
	at := path.Child(kind)
	switch kind {
	case "":
		return field.ErrorList{field.Required(path, "must specify a volume type")}
	case "hostPath":
		errs = append(errs, validateHostPath(v.HostPath, at)...)
	case "emptyDir":
		errs = append(errs, validateEmptyDir(v.EmptyDir, at)...)
	case "secret":
		errs = append(errs, required(at.Child("secretName"), v.Secret.SecretName)...)
		errs = append(errs, validateFiles(v.Secret.DefaultMode, v.Secret.Items, at)...)
	case "configMap":
		errs = append(errs, required(at.Child("name"), v.ConfigMap.Name)...)
		errs = append(errs, validateFiles(v.ConfigMap.DefaultMode, v.ConfigMap.Items, at)...)
	case "downwardAPI":
		errs = append(errs, validateMode(v.DownwardAPI.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, validateDownwardFiles(v.DownwardAPI.Items, at)...)
	case "projected":
		errs = append(errs, validateProjected(v.Projected, at)...)
	case "persistentVolumeClaim":
		errs = append(errs, required(at.Child("claimName"), v.PersistentVolumeClaim.ClaimName)...)
	case "ephemeral":
		errs = append(errs, validateEphemeral(v, p, path)...)
	case "image":
		errs = append(errs, required(at.Child("reference"), v.Image.Reference)...)
		errs = append(errs, validateEnum(v.Image.PullPolicy, at.Child("pullPolicy"), v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	default:
		errs = append(errs, validateDriver(&v.VolumeSource, kind, at)...)
	}
	return errs
}

// volumeKinds returns the types of volumes by their API names. The first one that is set counts, in
// the API server's order.
func volumeKinds(v *v1.VolumeSource) []alternative {
	return []alternative{
		{"emptyDir", v.EmptyDir != nil},
		{"hostPath", v.HostPath != nil},
		{"gitRepo", v.GitRepo != nil},
		{"gcePersistentDisk", v.GCEPersistentDisk != nil},
		{"awsElasticBlockStore", v.AWSElasticBlockStore != nil},
		{"secret", v.Secret != nil},
		{"nfs", v.NFS != nil},
		{"iscsi", v.ISCSI != nil},
		{"glusterfs", v.Glusterfs != nil},
		{"flocker", v.Flocker != nil},
		{"persistentVolumeClaim", v.PersistentVolumeClaim != nil},
		{"rbd", v.RBD != nil},
		{"cinder", v.Cinder != nil},
		{"cephfs", v.CephFS != nil},
		{"quobyte", v.Quobyte != nil},
		{"downwardAPI", v.DownwardAPI != nil},
		{"fc", v.FC != nil},
		{"flexVolume", v.FlexVolume != nil},
		{"configMap", v.ConfigMap != nil},
		{"azureFile", v.AzureFile != nil},
		{"vsphereVolume", v.VsphereVolume != nil},
		{"photonPersistentDisk", v.PhotonPersistentDisk != nil},
		{"portworxVolume", v.PortworxVolume != nil},
		{"azureDisk", v.AzureDisk != nil},
		{"storageos", v.StorageOS != nil},
		{"projected", v.Projected != nil},
		{"scaleIO", v.ScaleIO != nil},
		{"csi", v.CSI != nil},
		{"ephemeral", v.Ephemeral != nil},
		{"image", v.Image != nil},
	}
}

func validateHostPath(h *v1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	errs := validateNoBacksteps(h.Path, path.Child("path"))
	return append(errs, validateChoice(h.Type, path.Child("type"), v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory,
		v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
}

func validateEmptyDir(e *v1.EmptyDirVolumeSource, path *field.Path) field.ErrorList {
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		return field.ErrorList{field.Forbidden(path.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")}
	}
	return nil
}

func validateFiles(mode *int32, items []v1.KeyToPath, path *field.Path) field.ErrorList {
	errs := validateMode(mode, path.Child("defaultMode"))
	for i, item := range items {
		at := path.Child("items").Index(i)
		errs = append(errs, required(at.Child("key"), item.Key)...)
		errs = append(errs, validateKeyPath(item.Path, at.Child("path"))...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

func validateMode(mode *int32, path *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > maxFileMode) {
		return field.ErrorList{field.Invalid(path, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func validateDownwardFiles(items []v1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		at := path.Child("items").Index(i)
		errs = append(errs, validateKeyPath(item.Path, at.Child("path"))...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
		switch {
		case item.FieldRef != nil:
			errs = append(errs, validateFieldRef(item.FieldRef, volumeFields, at.Child("fieldRef"))...)
			if item.ResourceFieldRef != nil {
				errs = append(errs, field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
			}
		case item.ResourceFieldRef == nil:
			errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
		// ResourceFieldSelector.containerName: required for volumes.
		case item.ResourceFieldRef.ContainerName == "":
			errs = append(errs, field.Required(at.Child("resourceFieldRef", "containerName"), ""))
		default:
			errs = append(errs, validateResourceFieldRef(item.ResourceFieldRef, at.Child("resourceFieldRef"))...)
		}
	}
	return errs
}
