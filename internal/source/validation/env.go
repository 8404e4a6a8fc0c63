package validation

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/pod"
)

// envFields are the pod fields that environment variables can have as their value, volumeFields
// those of downwardAPI volumes (kubernetes.io/docs/concepts/workloads/pods/downward-api). Metadata
// fields that are maps take a key in brackets. otherFields are names for field selectors of pods
// only (kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors).
var (
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	volumeFields = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
	otherFields  = []string{"spec.restartPolicy", "spec.schedulerName", "status.phase"}
)

// resourceFields are the resources of environment variables and downwardAPI volumes.
var resourceFields = []string{
	"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory",
}

// divisors are the units of a resource (kubernetes.io/docs/concepts/workloads/pods/downward-api).
var (
	cpuDivisors  = []string{"1m", "1"}
	byteDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
)

// validateEnv checks env and envFrom. Names follow the relaxed rule (KEP-4369): printable ASCII
// without '='.
func validateEnv(c *v1.Container, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range c.Env {
		at := path.Child("env").Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		if e.ValueFrom != nil {
			errs = append(errs, validateEnvSource(&e, spec, at.Child("valueFrom"))...)
		}
	}
	for i, e := range c.EnvFrom {
		at := path.Child("envFrom").Index(i)
		if e.Prefix != "" {
			errs = append(errs, invalid(at.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))...)
		}
		errs = append(errs, exactlyOneSource(at, []alternative{{"configMapRef", e.ConfigMapRef != nil}, {"secretRef", e.SecretRef != nil}})...)
		if e.ConfigMapRef != nil {
			errs = append(errs, validateSourceName(e.ConfigMapRef.Name, at.Child("configMapRef", "name"))...)
		}
		if e.SecretRef != nil {
			errs = append(errs, validateSourceName(e.SecretRef.Name, at.Child("secretRef", "name"))...)
		}
	}
	return errs
}

func validateEnvSource(e *v1.EnvVar, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	from := e.ValueFrom
	errs := exactlyOneSource(path, []alternative{
		{"fieldRef", from.FieldRef != nil},
		{"resourceFieldRef", from.ResourceFieldRef != nil},
		{"configMapKeyRef", from.ConfigMapKeyRef != nil},
		{"secretKeyRef", from.SecretKeyRef != nil},
		{"fileKeyRef", from.FileKeyRef != nil},
	})
	if e.Value != "" {
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	}
	if from.FieldRef != nil {
		errs = append(errs, validateFieldRef(from.FieldRef, envFields, path.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		errs = append(errs, validateResourceFieldRef(from.ResourceFieldRef, path.Child("resourceFieldRef"))...)
		if name := from.ResourceFieldRef.ContainerName; name != "" && pod.FindContainer(spec, name) == nil {
			errs = append(errs, field.NotFound(path.Child("resourceFieldRef", "containerName"), name))
		}
	}
	if r := from.ConfigMapKeyRef; r != nil {
		at := path.Child("configMapKeyRef")
		errs = append(errs, validateObjectName(r.Name, at.Child("name"))...)
		errs = append(errs, validateKey(r.Key, at.Child("key"))...)
	}
	if r := from.SecretKeyRef; r != nil {
		at := path.Child("secretKeyRef")
		errs = append(errs, validateObjectName(r.Name, at.Child("name"))...)
		errs = append(errs, validateKey(r.Key, at.Child("key"))...)
	}
	if from.FileKeyRef != nil {
		errs = append(errs, validateFileKeyRef(from.FileKeyRef, spec.Volumes, path.Child("fileKeyRef"))...)
	}
	return errs
}

// exactlyOneSource checks that exactly one of the sources of a value, named by their fields, is
// set.
func exactlyOneSource(path *field.Path, sources []alternative) field.ErrorList {
	n := 0
	var fields []string
	for _, s := range sources {
		fields = append(fields, "`"+s.field+"`")
		if s.set {
			n++
		}
	}
	switch {
	case n == 0:
		return field.ErrorList{field.Invalid(path, "", "must specify one of: "+strings.Join(fields, ", "))}
	case n > 1:
		return field.ErrorList{field.Invalid(path, "", "may not have more than one field specified at a time")}
	}
	return nil
}

// validateFileKeyRef checks a variable from a file in a volume of the pod (KEP-3721).
func validateFileKeyRef(f *v1.FileKeySelector, volumes []v1.Volume, path *field.Path) field.ErrorList {
	at := path.Child("volumeName")
	errs := required(at, f.VolumeName)
	if f.VolumeName != "" {
		errs = append(errs, invalid(at, f.VolumeName, validation.IsDNS1123Label(f.VolumeName))...)
	}
	if i := slices.IndexFunc(volumes, func(v v1.Volume) bool { return v.Name == f.VolumeName }); i < 0 {
		errs = append(errs, field.NotFound(at, f.VolumeName))
	} else if volumes[i].EmptyDir == nil {
		errs = append(errs, field.Invalid(at, f.VolumeName, "must be an emptyDir volume"))
	}
	errs = append(errs, required(path.Child("path"), f.Path)...)
	errs = append(errs, validateNoBacksteps(f.Path, path.Child("path"))...)
	errs = append(errs, required(path.Child("key"), f.Key)...)
	if f.Key != "" {
		errs = append(errs, invalid(path.Child("key"), f.Key, validation.IsRelaxedEnvVarName(f.Key))...)
	}
	return errs
}

// validateFieldRef checks that the field is allowed.
func validateFieldRef(f *v1.ObjectFieldSelector, allowed []string, path *field.Path) field.ErrorList {
	at := path.Child("fieldPath")
	switch {
	case f.FieldPath == "":
		return field.ErrorList{field.Required(at, "")}
	case f.APIVersion != "v1":
		return field.ErrorList{field.NotSupported(path.Child("apiVersion"), f.APIVersion, []string{"v1"})}
	}
	if slices.Contains(allowed, f.FieldPath) {
		return nil
	}
	if name, key, ok := cutSubscript(f.FieldPath); ok {
		switch name {
		case "metadata.labels":
			return invalid(path, key, validation.IsQualifiedName(key))
		case "metadata.annotations":
			return invalid(path, key, validation.IsQualifiedName(strings.ToLower(key)))
		}
	}
	for _, known := range [][]string{envFields, volumeFields, otherFields} {
		if slices.Contains(known, f.FieldPath) {
			return field.ErrorList{field.NotSupported(at, f.FieldPath, allowed)}
		}
	}
	return field.ErrorList{field.Invalid(at, f.FieldPath, "there is no such field to refer to; there are "+strings.Join(allowed, ", ")+
		", metadata.labels['<key>'], metadata.annotations['<key>']")}
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

// validateResourceFieldRef checks the resource and its unit.
func validateResourceFieldRef(r *v1.ResourceFieldSelector, path *field.Path) field.ErrorList {
	if r.Resource == "" {
		return field.ErrorList{field.Required(path.Child("resource"), "")}
	}
	_, resource, _ := strings.Cut(r.Resource, ".")
	hugePages := strings.HasPrefix(r.Resource, "limits.hugepages-") || strings.HasPrefix(r.Resource, "requests.hugepages-")
	if !hugePages && !slices.Contains(resourceFields, r.Resource) {
		return field.ErrorList{field.NotSupported(path.Child("resource"), r.Resource, resourceFields)}
	}
	divisors := byteDivisors
	if resource == "cpu" {
		divisors = cpuDivisors
	}
	if !r.Divisor.IsZero() && !slices.Contains(divisors, r.Divisor.String()) {
		return field.ErrorList{field.Invalid(path.Child("divisor"), r.Divisor.String(),
			fmt.Sprintf("%s can be divided by %s", resource, strings.Join(divisors, ", ")))}
	}
	return nil
}

func validateObjectName(name string, path *field.Path) field.ErrorList {
	return invalid(path, name, validation.IsDNS1123Subdomain(name))
}

// validateSourceName checks the name of a ConfigMap or Secret in envFrom. It may end with a dash,
// as in the API server.
func validateSourceName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, name, apivalidation.NameIsDNSSubdomain(name, true))
}

func validateKey(key string, path *field.Path) field.ErrorList {
	if key == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, key, validation.IsConfigMapKey(key))
}
