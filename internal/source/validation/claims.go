package validation

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// validateEphemeral checks a volume whose claim is created from a template: the claim, and its
// name.
func validateEphemeral(v *v1.Volume, p *v1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Name != "" && len(validation.IsDNS1123Label(v.Name)) == 0 {
		// kubernetes.io/docs/concepts/storage/ephemeral-volumes, "PersistentVolumeClaim naming".
		claim := p.Name + "-" + v.Name
		errs = append(errs, invalid(path.Child("name"), v.Name, validation.IsDNS1123Subdomain(claim))...)
	}
	at := path.Child("ephemeral", "volumeClaimTemplate")
	t := v.Ephemeral.VolumeClaimTemplate
	if t == nil {
		return append(errs, field.Required(at, ""))
	}
	errs = append(errs, metavalidation.ValidateLabels(t.Labels, at.Child("metadata", "labels"))...)
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, at.Child("metadata", "annotations"))...)
	errs = append(errs, validateTemplateMeta(t, at.Child("metadata"))...)
	return append(errs, validateClaimSpec(&t.Spec, at.Child("spec"))...)
}

// validateTemplateMeta checks that only metadata that is copied to the claim is set.
func validateTemplateMeta(t *v1.PersistentVolumeClaimTemplate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []alternative{
		{"name", t.Name != ""},
		{"generateName", t.GenerateName != ""},
		{"namespace", t.Namespace != ""},
		{"finalizers", len(t.Finalizers) > 0},
		{"ownerReferences", len(t.OwnerReferences) > 0},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(path.Child(f.field), "cannot be set"))
		}
	}
	return errs
}

func validateClaimSpec(c *v1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	at := path.Child("accessModes")
	var errs field.ErrorList
	if len(c.AccessModes) == 0 {
		errs = append(errs, field.Required(at, "at least 1 access mode is required"))
	}
	for _, mode := range c.AccessModes {
		errs = append(errs, validateChoice(&mode, at, v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod)...)
	}
	isOther := func(m v1.PersistentVolumeAccessMode) bool { return m != v1.ReadWriteOncePod }
	if slices.Contains(c.AccessModes, v1.ReadWriteOncePod) && slices.ContainsFunc(c.AccessModes, isOther) {
		errs = append(errs, field.Forbidden(at, "may not use ReadWriteOncePod with other access modes"))
	}
	errs = append(errs, validateSelector(c.Selector, path.Child("selector"))...)
	if size, ok := c.Resources.Requests[v1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(path.Child("resources").Key(string(v1.ResourceStorage)), ""))
	} else if size.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("resources").Key(string(v1.ResourceStorage)), size.String(), "must be greater than zero"))
	}
	if name := ptr.Deref(c.StorageClassName, ""); name != "" {
		errs = append(errs, invalid(path.Child("storageClassName"), name, validation.IsDNS1123Subdomain(name))...)
	}
	if name := ptr.Deref(c.VolumeAttributesClassName, ""); name != "" {
		errs = append(errs, invalid(path.Child("volumeAttributesClassName"), name, validation.IsDNS1123Subdomain(name))...)
	}
	errs = append(errs, validateChoice(c.VolumeMode, path.Child("volumeMode"), v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)...)
	return append(errs, validateDataSources(c, path)...)
}

// validateDataSources checks the data sources of the claim's volume; the two fields are two forms
// of one.
func validateDataSources(c *v1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := c.DataSource; s != nil {
		errs = append(errs, validateDataSource(s.APIGroup, s.Kind, s.Name, path.Child("dataSource"))...)
	}
	if r := c.DataSourceRef; r != nil {
		errs = append(errs, validateDataSource(r.APIGroup, r.Kind, r.Name, path.Child("dataSourceRef"))...)
	}
	if s, r := c.DataSource, c.DataSourceRef; s != nil && r != nil &&
		(ptr.Deref(s.APIGroup, "") != ptr.Deref(r.APIGroup, "") || s.Kind != r.Kind || s.Name != r.Name) {
		errs = append(errs, field.Invalid(path, "", "must match dataSourceRef"))
	}
	return errs
}

func validateDataSource(group *string, kind, name string, path *field.Path) field.ErrorList {
	errs := required(path.Child("name"), name)
	errs = append(errs, required(path.Child("kind"), kind)...)
	if g := ptr.Deref(group, ""); g != "" {
		errs = append(errs, invalid(path.Child("apiGroup"), g, validation.IsDNS1123Subdomain(g))...)
	} else if kind != "PersistentVolumeClaim" {
		errs = append(errs, field.Invalid(path, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
	}
	return errs
}
