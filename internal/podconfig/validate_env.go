package podconfig

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// envFields are the fields of a pod that its environment can show, volumeFields those that its downwardAPI volumes can
// (kubernetes.io/docs/concepts/workloads/pods/downward-api). Those of metadata that hold a map take a key in brackets.
var (
	envFields = map[string]struct{}{
		"metadata.name": {}, "metadata.namespace": {}, "metadata.uid": {},
		"spec.nodeName": {}, "spec.serviceAccountName": {},
		"status.hostIP": {}, "status.hostIPs": {}, "status.podIP": {}, "status.podIPs": {},
	}
	volumeFields = map[string]struct{}{
		"metadata.name": {}, "metadata.namespace": {}, "metadata.uid": {},
		"metadata.labels": {}, "metadata.annotations": {},
	}
)

// resourceFields are the resources that the environment and downwardAPI volumes can show.
var resourceFields = []string{
	"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory",
}

// validateEnv checks env and envFrom. Names follow the relaxed rule (KEP-4369): printable ASCII without '='.
func validateEnv(c *v1.Container, spec *v1.PodSpec, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range c.Env {
		at := path.Child("env").Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		if e.ValueFrom != nil {
			errs = append(errs, validateEnvSource(&e, spec, volumes, at.Child("valueFrom"))...)
		}
	}
	for i, e := range c.EnvFrom {
		at := path.Child("envFrom").Index(i)
		if e.Prefix != "" {
			errs = append(errs, invalid(at.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))...)
		}
		if err := exactlyOne(at, "reference (`configMapRef` or `secretRef`)", e.ConfigMapRef != nil, e.SecretRef != nil); err != nil {
			errs = append(errs, err)
			continue
		}
		if e.ConfigMapRef != nil {
			errs = append(errs, validateObjectName(e.ConfigMapRef.Name, at.Child("configMapRef", "name"))...)
		} else {
			errs = append(errs, validateObjectName(e.SecretRef.Name, at.Child("secretRef", "name"))...)
		}
	}
	return errs
}

func validateEnvSource(e *v1.EnvVar, spec *v1.PodSpec, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	from := e.ValueFrom
	if err := exactlyOne(path, "source of the value", from.FieldRef != nil, from.ResourceFieldRef != nil,
		from.ConfigMapKeyRef != nil, from.SecretKeyRef != nil, from.FileKeyRef != nil); err != nil {
		return field.ErrorList{err}
	}
	var errs field.ErrorList
	if e.Value != "" {
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	}
	switch {
	case from.FieldRef != nil:
		errs = append(errs, validateFieldRef(from.FieldRef, envFields, path.Child("fieldRef"))...)
	case from.ResourceFieldRef != nil:
		errs = append(errs, validateResourceFieldRef(from.ResourceFieldRef, spec, path.Child("resourceFieldRef"))...)
	case from.ConfigMapKeyRef != nil:
		at := path.Child("configMapKeyRef")
		errs = append(errs, validateObjectName(from.ConfigMapKeyRef.Name, at.Child("name"))...)
		errs = append(errs, validateKey(from.ConfigMapKeyRef.Key, at.Child("key"))...)
	case from.SecretKeyRef != nil:
		at := path.Child("secretKeyRef")
		errs = append(errs, validateObjectName(from.SecretKeyRef.Name, at.Child("name"))...)
		errs = append(errs, validateKey(from.SecretKeyRef.Key, at.Child("key"))...)
	case from.FileKeyRef != nil:
		at := path.Child("fileKeyRef")
		if v := volumes[from.FileKeyRef.VolumeName]; v == nil {
			errs = append(errs, field.NotFound(at.Child("volumeName"), from.FileKeyRef.VolumeName))
		} else if v.EmptyDir == nil {
			errs = append(errs, field.Invalid(at.Child("volumeName"), v.Name, "must be an emptyDir volume")) // KEP-3721
		}
		errs = append(errs, validateKeyPath(from.FileKeyRef.Path, at.Child("path"))...)
		if from.FileKeyRef.Key == "" {
			errs = append(errs, field.Required(at.Child("key"), ""))
		} else {
			errs = append(errs, invalid(at.Child("key"), from.FileKeyRef.Key, validation.IsRelaxedEnvVarName(from.FileKeyRef.Key))...)
		}
	}
	return errs
}

// validateFieldRef checks that the field is one of those allowed.
func validateFieldRef(f *v1.ObjectFieldSelector, allowed map[string]struct{}, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if f.APIVersion != "v1" {
		errs = append(errs, field.NotSupported(path.Child("apiVersion"), f.APIVersion, []string{"v1"}))
	}
	at := path.Child("fieldPath")
	if f.FieldPath == "" {
		return append(errs, field.Required(at, ""))
	}
	if _, ok := allowed[f.FieldPath]; ok {
		return errs
	}
	if name, key, ok := cutSubscript(f.FieldPath); ok {
		switch name {
		case "metadata.labels":
			return append(errs, invalid(at, key, validation.IsQualifiedName(key))...)
		case "metadata.annotations":
			return append(errs, invalid(at, key, validation.IsQualifiedName(strings.ToLower(key)))...)
		}
	}
	return append(errs, field.NotSupported(at, f.FieldPath, append(slices.Sorted(maps.Keys(allowed)),
		"metadata.labels['<key>']", "metadata.annotations['<key>']")))
}

// cutSubscript splits "metadata.labels['key']".
func cutSubscript(path string) (name, key string, ok bool) {
	name, key, ok = strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(key, "']")
	return name, key, ok
}

// validateResourceFieldRef checks the resource and, if a container is named, that the pod has it.
func validateResourceFieldRef(r *v1.ResourceFieldSelector, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec != nil && r.ContainerName != "" {
		hasName := func(c v1.Container) bool { return c.Name == r.ContainerName }
		if !slices.ContainsFunc(spec.Containers, hasName) && !slices.ContainsFunc(spec.InitContainers, hasName) {
			errs = append(errs, field.NotFound(path.Child("containerName"), r.ContainerName))
		}
	}
	switch {
	case r.Resource == "":
		errs = append(errs, field.Required(path.Child("resource"), ""))
	case strings.HasPrefix(r.Resource, "limits.hugepages-"), strings.HasPrefix(r.Resource, "requests.hugepages-"):
	case !slices.Contains(resourceFields, r.Resource):
		errs = append(errs, field.NotSupported(path.Child("resource"), r.Resource, resourceFields))
	}
	if r.Divisor.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("divisor"), r.Divisor.String(), "must be positive"))
	}
	return errs
}

// validateObjectName checks the name of a ConfigMap or Secret.
func validateObjectName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, name, validation.IsDNS1123Subdomain(name))
}

// validateKey checks the key of a ConfigMap or Secret.
func validateKey(key string, path *field.Path) field.ErrorList {
	if key == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, key, validation.IsConfigMapKey(key))
}
