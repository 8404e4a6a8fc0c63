package validation

import (
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// validateMounts checks volumeMounts; volumes are the pod's, by name.
func validateMounts(c *v1.Container, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	devices, devicePaths := map[string]struct{}{}, map[string]struct{}{}
	for _, d := range c.VolumeDevices {
		devices[d.Name], devicePaths[d.DevicePath] = struct{}{}, struct{}{}
	}
	paths := map[string]struct{}{}
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], path.Child("volumeMounts").Index(i)
		errs = append(errs, validateVolumeName(m.Name, volumes, at.Child("name"))...)
		if _, ok := devices[m.Name]; ok {
			errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		errs = append(errs, required(at.Child("mountPath"), m.MountPath)...)
		if _, taken := paths[m.MountPath]; taken {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		if _, ok := devicePaths[m.MountPath]; ok {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		paths[m.MountPath] = struct{}{}
		errs = append(errs, validateMountOptions(m, c.SecurityContext, at)...)
	}
	return errs
}

// validateVolumeName checks that the pod has a volume of the name.
func validateVolumeName(name string, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	errs := required(path, name)
	if volumes[name] == nil {
		errs = append(errs, field.NotFound(path, name))
	}
	return errs
}

func validateDevices(c *v1.Container, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	mounts, mountPaths := map[string]struct{}{}, map[string]struct{}{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name], mountPaths[m.MountPath] = struct{}{}, struct{}{}
	}
	names, paths := map[string]struct{}{}, map[string]struct{}{}
	for i, d := range c.VolumeDevices {
		at := path.Child("volumeDevices").Index(i)
		errs = append(errs, validateVolumeName(d.Name, volumes, at.Child("name"))...)
		if v := volumes[d.Name]; v != nil && v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name,
				"can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if _, taken := names[d.Name]; taken {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must be unique"))
		}
		if _, ok := mounts[d.Name]; ok {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must not already exist in volumeMounts"))
		}
		errs = append(errs, required(at.Child("devicePath"), d.DevicePath)...)
		if _, taken := paths[d.DevicePath]; taken {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		if _, ok := mountPaths[d.DevicePath]; ok {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must not already exist as a path in volumeMounts"))
		}
		if slices.Contains(strings.Split(d.DevicePath, "/"), "..") {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')"))
		}
		names[d.Name], paths[d.DevicePath] = struct{}{}, struct{}{}
	}
	return errs
}

func validateMountOptions(m *v1.VolumeMount, sc *v1.SecurityContext, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.SubPath != "" {
		errs = append(errs, validateLocalPath(m.SubPath, path.Child("subPath"))...)
	}
	if m.SubPathExpr != "" {
		if m.SubPath != "" {
			errs = append(errs, field.Invalid(path.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
		errs = append(errs, validateLocalPath(m.SubPathExpr, path.Child("subPathExpr"))...)
	}
	errs = append(errs, validateChoice(m.MountPropagation, path.Child("mountPropagation"),
		v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer, v1.MountPropagationNone)...)
	propagation := ptr.Deref(m.MountPropagation, v1.MountPropagationNone)
	if propagation == v1.MountPropagationBidirectional && (sc == nil || !ptr.Deref(sc.Privileged, false)) {
		errs = append(errs, field.Forbidden(path.Child("mountPropagation"),
			"Bidirectional mount propagation is available only to privileged containers"))
	}
	at := path.Child("recursiveReadOnly")
	errs = append(errs, validateChoice(m.RecursiveReadOnly, at,
		v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)...)
	if r := ptr.Deref(m.RecursiveReadOnly, ""); r == v1.RecursiveReadOnlyEnabled || r == v1.RecursiveReadOnlyIfPossible {
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
		if propagation != v1.MountPropagationNone {
			errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
		}
	}
	return errs
}

// validateLocalPath checks that the path stays inside the directory that it is relative to.
func validateLocalPath(path string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if filepath.IsAbs(path) {
		errs = append(errs, field.Invalid(at, path, "must be a relative path"))
	}
	return append(errs, validateNoBacksteps(path, at)...)
}

func validateNoBacksteps(path string, at *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return field.ErrorList{field.Invalid(at, path, "must not contain '..'")}
	}
	return nil
}

// validateKeyPath checks the path of a file in a volume: local, and not a name that the volume uses
// itself.
func validateKeyPath(path string, at *field.Path) field.ErrorList {
	if path == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := validateLocalPath(path, at)
	if strings.HasPrefix(path, "..") && !strings.HasPrefix(path, "../") && path != ".." {
		errs = append(errs, field.Invalid(at, path, "must not start with '..'"))
	}
	return errs
}
