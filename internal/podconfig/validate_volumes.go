package podconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxFileMode     int32 = 0o777
	minTokenSeconds int64 = 600       // ServiceAccountTokenProjection.expirationSeconds: at least 10 minutes
	maxTokenSeconds int64 = 1<<32 - 1 // the same field, as the TokenRequest API takes it
)

// validateVolumes checks the pod's volumes and returns those with a usable name by it.
func validateVolumes(volumes []v1.Volume, path *field.Path) (map[string]*v1.Volume, field.ErrorList) {
	var errs field.ErrorList
	byName := make(map[string]*v1.Volume, len(volumes))
	names := map[string]struct{}{}
	for i := range volumes {
		v, at := &volumes[i], path.Index(i)
		errs = append(errs, validateUniqueLabel(v.Name, names, at.Child("name"))...)
		if v.Name != "" {
			byName[v.Name] = v
		}
		errs = append(errs, validateVolume(&v.VolumeSource, at)...)
	}
	return byName, errs
}

func validateVolume(v *v1.VolumeSource, path *field.Path) field.ErrorList {
	switch kinds := volumeKinds(v); len(kinds) {
	case 0:
		return field.ErrorList{field.Required(path, "must specify a volume type")}
	case 1:
	default:
		return field.ErrorList{field.Forbidden(path.Child(kinds[1]),
			fmt.Sprintf("may not specify more than 1 volume type (%s)", strings.Join(kinds, ", ")))}
	}
	switch {
	case v.HostPath != nil:
		return validateHostPath(v.HostPath, path.Child("hostPath"))
	case v.EmptyDir != nil:
		return validateEmptyDir(v.EmptyDir, path.Child("emptyDir"))
	case v.Secret != nil:
		at := path.Child("secret")
		errs := required(at.Child("secretName"), v.Secret.SecretName)
		return append(errs, validateFiles(v.Secret.DefaultMode, v.Secret.Items, at)...)
	case v.ConfigMap != nil:
		at := path.Child("configMap")
		errs := required(at.Child("name"), v.ConfigMap.Name)
		return append(errs, validateFiles(v.ConfigMap.DefaultMode, v.ConfigMap.Items, at)...)
	case v.DownwardAPI != nil:
		at := path.Child("downwardAPI")
		errs := validateMode(v.DownwardAPI.DefaultMode, at.Child("defaultMode"))
		return append(errs, validateDownwardFiles(v.DownwardAPI.Items, at)...)
	case v.Projected != nil:
		return validateProjected(v.Projected, path.Child("projected"))
	case v.PersistentVolumeClaim != nil:
		return required(path.Child("persistentVolumeClaim", "claimName"), v.PersistentVolumeClaim.ClaimName)
	case v.Image != nil:
		at := path.Child("image")
		errs := required(at.Child("reference"), v.Image.Reference)
		return append(errs, validateEnum(v.Image.PullPolicy, at.Child("pullPolicy"), v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	default:
		return validateDriverVolume(v, path)
	}
}

// validateDriverVolume checks the required fields of the kinds that bring their own driver.
func validateDriverVolume(v *v1.VolumeSource, path *field.Path) field.ErrorList {
	switch {
	case v.NFS != nil:
		at := path.Child("nfs")
		errs := required(at.Child("server"), v.NFS.Server)
		errs = append(errs, required(at.Child("path"), v.NFS.Path)...)
		if v.NFS.Path != "" && !strings.HasPrefix(v.NFS.Path, "/") {
			errs = append(errs, field.Invalid(at.Child("path"), v.NFS.Path, "must be an absolute path"))
		}
		return errs
	case v.ISCSI != nil:
		at := path.Child("iscsi")
		errs := required(at.Child("targetPortal"), v.ISCSI.TargetPortal)
		errs = append(errs, required(at.Child("iqn"), v.ISCSI.IQN)...)
		if v.ISCSI.Lun < 0 || v.ISCSI.Lun > 255 {
			errs = append(errs, field.Invalid(at.Child("lun"), v.ISCSI.Lun, validation.InclusiveRangeError(0, 255)))
		}
		return errs
	case v.FC != nil:
		at := path.Child("fc")
		if err := exactlyOne(at, "target (`targetWWNs` or `wwids`)", len(v.FC.TargetWWNs) > 0, len(v.FC.WWIDs) > 0); err != nil {
			return field.ErrorList{err}
		}
		if len(v.FC.TargetWWNs) > 0 && v.FC.Lun == nil {
			return required(at.Child("lun"), "")
		}
		return nil
	case v.GitRepo != nil:
		errs := required(path.Child("gitRepo", "repository"), v.GitRepo.Repository)
		return append(errs, validateLocalPath(v.GitRepo.Directory, path.Child("gitRepo", "directory"))...)
	case v.FlexVolume != nil:
		return required(path.Child("flexVolume", "driver"), v.FlexVolume.Driver)
	case v.CSI != nil:
		return required(path.Child("csi", "driver"), v.CSI.Driver)
	case v.Ephemeral != nil:
		if v.Ephemeral.VolumeClaimTemplate == nil {
			return required(path.Child("ephemeral", "volumeClaimTemplate"), "")
		}
	}
	return nil
}

// volumeKinds returns the kinds that the source sets, by their names in the API.
func volumeKinds(v *v1.VolumeSource) []string {
	var kinds []string
	fields := reflect.ValueOf(*v)
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
			kinds = append(kinds, name)
		}
	}
	return kinds
}

func required(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}

func validateHostPath(h *v1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	errs := required(path.Child("path"), h.Path)
	if slices.Contains(strings.Split(h.Path, "/"), "..") {
		errs = append(errs, field.Invalid(path.Child("path"), h.Path, "must not contain '..'"))
	}
	if h.Type != nil && *h.Type != v1.HostPathUnset {
		errs = append(errs, validateEnum(*h.Type, path.Child("type"),
			v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate, v1.HostPathFile,
			v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
	}
	return errs
}

func validateEmptyDir(e *v1.EmptyDirVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(path.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	size, hugePages := strings.CutPrefix(string(e.Medium), string(v1.StorageMediumHugePagesPrefix))
	if _, err := resource.ParseQuantity(size); hugePages && err != nil {
		errs = append(errs, field.Invalid(path.Child("medium"), e.Medium, "must name a page size, as HugePages-2Mi"))
	}
	return errs
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
		if err := exactlyOne(at, "reference (`fieldRef` or `resourceFieldRef`)", item.FieldRef != nil, item.ResourceFieldRef != nil); err != nil {
			errs = append(errs, err)
			continue
		}
		if item.FieldRef != nil {
			errs = append(errs, validateFieldRef(item.FieldRef, volumeFields, at.Child("fieldRef"))...)
			continue
		}
		if item.ResourceFieldRef.ContainerName == "" { // ResourceFieldSelector.containerName: required for volumes
			errs = append(errs, field.Required(at.Child("resourceFieldRef", "containerName"), ""))
		}
		errs = append(errs, validateResourceFieldRef(item.ResourceFieldRef, nil, at.Child("resourceFieldRef"))...)
	}
	return errs
}

func validateProjected(p *v1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	errs := validateMode(p.DefaultMode, path.Child("defaultMode"))
	for i := range p.Sources {
		s, at := &p.Sources[i], path.Child("sources").Index(i)
		if err := exactlyOne(at, "volume type", s.Secret != nil, s.ConfigMap != nil, s.DownwardAPI != nil,
			s.ServiceAccountToken != nil, s.ClusterTrustBundle != nil, s.PodCertificate != nil); err != nil {
			errs = append(errs, err)
			continue
		}
		switch {
		case s.Secret != nil:
			errs = append(errs, required(at.Child("secret", "name"), s.Secret.Name)...)
			errs = append(errs, validateFiles(nil, s.Secret.Items, at.Child("secret"))...)
		case s.ConfigMap != nil:
			errs = append(errs, required(at.Child("configMap", "name"), s.ConfigMap.Name)...)
			errs = append(errs, validateFiles(nil, s.ConfigMap.Items, at.Child("configMap"))...)
		case s.DownwardAPI != nil:
			errs = append(errs, validateDownwardFiles(s.DownwardAPI.Items, at.Child("downwardAPI"))...)
		case s.ServiceAccountToken != nil:
			errs = append(errs, validateToken(s.ServiceAccountToken, at.Child("serviceAccountToken"))...)
		}
	}
	return errs
}

func validateToken(t *v1.ServiceAccountTokenProjection, path *field.Path) field.ErrorList {
	errs := validateKeyPath(t.Path, path.Child("path"))
	if s := t.ExpirationSeconds; s != nil && (*s < minTokenSeconds || *s > maxTokenSeconds) {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *s, "must be between 10 minutes and 2^32-1 seconds"))
	}
	return errs
}
