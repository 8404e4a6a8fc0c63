package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The rules are those of the API server on create (API reference, "ConfigMap v1", "Secret v1",
// "PersistentVolumeClaim v1", "RuntimeClass v1" and "ClusterTrustBundle v1beta1"; Kubernetes
// documentation, "Types of Secret").

// ValidateObject validates the defaulted local object. Errors do not contain values of Secrets.
func ValidateObject(o metav1.Object) field.ErrorList {
	errs := validateObjectMetadata(o)
	switch o := o.(type) {
	case *v1.ConfigMap:
		return append(errs, validateConfigMap(o)...)
	case *v1.Secret:
		return append(errs, validateSecret(o)...)
	case *v1.PersistentVolumeClaim:
		return append(errs, validateClaim(&o.Spec, field.NewPath("spec"))...)
	case *v1.PersistentVolume:
		return append(errs, validatePersistentVolume(&o.Spec, field.NewPath("spec"))...)
	case *nodev1.RuntimeClass:
		return append(errs, invalid(field.NewPath("handler"), o.Handler, validation.IsDNS1123Label(o.Handler))...)
	case *certificatesv1beta1.ClusterTrustBundle:
		return append(errs, validateBundle(o)...)
	case *storagev1.CSIDriver:
		return append(errs, validateCSIDriver(o)...)
	}
	return errs
}

func validateObjectMetadata(o metav1.Object) field.ErrorList {
	path := field.NewPath("metadata")
	if o.GetName() == "" && o.GetGenerateName() != "" {
		return field.ErrorList{field.Required(path.Child("name"), "a manifest needs a name; generateName is not enough")}
	}
	switch o := o.(type) {
	case *nodev1.RuntimeClass, *v1.PersistentVolume, *storagev1.CSIDriver:
		return apivalidation.ValidateObjectMetaAccessor(o, false, apivalidation.NameIsDNSSubdomain, path)
	case *certificatesv1beta1.ClusterTrustBundle:
		return apivalidation.ValidateObjectMetaAccessor(o, false, nameOfBundle(o.Spec.SignerName), path)
	}
	return apivalidation.ValidateObjectMetaAccessor(o, true, apivalidation.NameIsDNSSubdomain, path)
}

func validateConfigMap(m *v1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		at := field.NewPath("data").Key(key)
		errs = append(errs, invalid(at, key, validation.IsConfigMapKey(key))...)
		if _, both := m.BinaryData[key]; both {
			errs = append(errs, field.Invalid(at, key, "is also a key of binaryData"))
		}
		size += len(m.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(m.BinaryData)) {
		errs = append(errs, invalid(field.NewPath("binaryData").Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(m.BinaryData[key])
	}
	return append(errs, validateObjectSize(size)...)
}

func validateSecret(s *v1.Secret) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, invalid(field.NewPath("data").Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(s.Data[key])
	}
	errs = append(errs, validateObjectSize(size)...)
	return append(errs, validateSecretType(s)...)
}

// validateObjectSize limits the total bytes of all values of a ConfigMap or Secret.
func validateObjectSize(size int) field.ErrorList {
	if size <= v1.MaxSecretSize {
		return nil
	}
	return field.ErrorList{&field.Error{
		Type: field.ErrorTypeTooLong, Field: "data", BadValue: field.OmitValueType{},
		Detail: fmt.Sprintf("the values have %d bytes; may not be more than %d bytes together", size, v1.MaxSecretSize),
	}}
}

// validateSecretType checks the keys that the Secret's type requires.
func validateSecretType(s *v1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	needs := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), fmt.Sprintf("a Secret of type %s has it", s.Type)))
			}
		}
	}
	needsJSON := func(key string) {
		needs(key)
		var object map[string]any
		// The error of Unmarshal may contain a part of the value.
		if value, ok := s.Data[key]; ok && json.Unmarshal(value, &object) != nil {
			errs = append(errs, &field.Error{
				Type: field.ErrorTypeInvalid, Field: data.Key(key).String(), BadValue: field.OmitValueType{}, Detail: "must be a JSON object",
			})
		}
	}
	switch s.Type {
	case v1.SecretTypeServiceAccountToken:
		if s.Annotations[v1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(v1.ServiceAccountNameKey),
				fmt.Sprintf("a Secret of type %s has it", s.Type)))
		}
	case v1.SecretTypeDockercfg:
		needsJSON(v1.DockerConfigKey)
	case v1.SecretTypeDockerConfigJson:
		needsJSON(v1.DockerConfigJsonKey)
	case v1.SecretTypeBasicAuth:
		_, username := s.Data[v1.BasicAuthUsernameKey]
		_, password := s.Data[v1.BasicAuthPasswordKey]
		if !username && !password {
			needs(v1.BasicAuthUsernameKey, v1.BasicAuthPasswordKey)
		}
	case v1.SecretTypeSSHAuth:
		needs(v1.SSHAuthPrivateKey)
	case v1.SecretTypeTLS:
		needs(v1.TLSCertKey, v1.TLSPrivateKeyKey)
	}
	return errs
}

// persistentSources are the types of persistent volumes in run mode.
const persistentSources = "csi, hostPath, local, nfs"

func validatePersistentVolume(spec *v1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), ""))
	}
	for _, mode := range spec.AccessModes {
		errs = append(errs, validateEnum(mode, path.Child("accessModes"), v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOnce, v1.ReadWriteOncePod)...)
	}
	if q, ok := spec.Capacity[v1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(path.Child("capacity").Key(string(v1.ResourceStorage)), ""))
	} else if q.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("capacity").Key(string(v1.ResourceStorage)), q.String(), "must be greater than zero"))
	}
	errs = append(errs, validateEnum(*spec.VolumeMode, path.Child("volumeMode"), v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)...)
	outside := func(path *field.Path, value string) {
		switch {
		case value == "":
			errs = append(errs, field.Required(path, ""))
		case slices.Contains(strings.Split(value, "/"), ".."):
			errs = append(errs, field.Invalid(path, value, "must not contain '..'"))
		}
	}
	sources := 0
	if s := spec.HostPath; s != nil {
		sources++
		outside(path.Child("hostPath", "path"), s.Path)
	}
	if s := spec.Local; s != nil {
		sources++
		outside(path.Child("local", "path"), s.Path)
	}
	if s := spec.NFS; s != nil {
		sources++
		errs = append(errs, required(path.Child("nfs", "server"), s.Server)...)
		outside(path.Child("nfs", "path"), s.Path)
		if s.Path != "" && !strings.HasPrefix(s.Path, "/") {
			errs = append(errs, field.Invalid(path.Child("nfs", "path"), s.Path, "must be an absolute path"))
		}
	}
	if s := spec.CSI; s != nil {
		sources++
		errs = append(errs, validatePersistentCSI(s, path.Child("csi"))...)
	}
	if sources != 1 {
		errs = append(errs, field.Required(path, "must specify exactly one volume source of: "+persistentSources))
	}
	return errs
}

func validateCSIDriver(d *storagev1.CSIDriver) field.ErrorList {
	var errs field.ErrorList
	if len(d.Name) > maxCSIDriver {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), d.Name, maxCSIDriver))
	}
	path := field.NewPath("spec")
	errs = append(errs, validateEnum(*d.Spec.FSGroupPolicy, path.Child("fsGroupPolicy"),
		storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)...)
	for i, mode := range d.Spec.VolumeLifecycleModes {
		errs = append(errs, validateEnum(mode, path.Child("volumeLifecycleModes").Index(i), storagev1.VolumeLifecycleEphemeral, storagev1.VolumeLifecyclePersistent)...)
	}
	if len(d.Spec.TokenRequests) > 0 {
		errs = append(errs, field.Forbidden(path.Child("tokenRequests"), "tokens of service accounts are issued by an API server, which there is none of here"))
	}
	return errs
}

// validatePersistentCSI checks the CSI source of a persistent volume.
func validatePersistentCSI(s *v1.CSIPersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := append(required(path.Child("driver"), s.Driver), required(path.Child("volumeHandle"), s.VolumeHandle)...)
	if len(s.Driver) > maxCSIDriver {
		errs = append(errs, field.TooLong(path.Child("driver"), s.Driver, maxCSIDriver))
	}
	if s.Driver != "" {
		errs = append(errs, invalid(path.Child("driver"), s.Driver, validation.IsDNS1123Subdomain(strings.ToLower(s.Driver)))...)
	}
	for _, ref := range []struct {
		name string
		*v1.SecretReference
	}{{"nodeStageSecretRef", s.NodeStageSecretRef}, {"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef}} {
		if ref.SecretReference != nil {
			errs = append(errs, required(path.Child(ref.name, "name"), ref.Name)...)
			errs = append(errs, required(path.Child(ref.name, "namespace"), ref.Namespace)...)
		}
	}
	return errs
}

func validateClaim(spec *v1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	modes := path.Child("accessModes")
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(modes, "at least 1 access mode is required"))
	}
	for _, mode := range spec.AccessModes {
		errs = append(errs, validateEnum(mode, modes, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOnce, v1.ReadWriteOncePod)...)
	}
	if len(spec.AccessModes) > 1 && slices.Contains(spec.AccessModes, v1.ReadWriteOncePod) {
		errs = append(errs, field.Forbidden(modes, "may not use ReadWriteOncePod with other access modes"))
	}
	storage := path.Child("resources").Key(string(v1.ResourceStorage))
	if q, ok := spec.Resources.Requests[v1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(storage, ""))
	} else if q.Sign() <= 0 {
		errs = append(errs, field.Invalid(storage, q.String(), "must be greater than zero"))
	}
	if c := spec.StorageClassName; c != nil && *c != "" {
		errs = append(errs, invalid(path.Child("storageClassName"), *c, validation.IsDNS1123Subdomain(*c))...)
	}
	if spec.VolumeMode != nil {
		errs = append(errs, validateEnum(*spec.VolumeMode, path.Child("volumeMode"), v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)...)
	}
	if spec.Selector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	return errs
}
