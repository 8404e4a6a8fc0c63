package podconfig

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const (
	maxRestartRules     = 20  // Container.restartPolicyRules
	maxRestartExitCodes = 255 // ContainerRestartRuleOnExitCodes.values
)

// validateContainers checks the init and main containers; volumes are the pod's, by name.
func validateContainers(spec *v1.PodSpec, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), "a pod needs at least one container"))
	}
	names := map[string]struct{}{}
	check := func(c *v1.Container, at *field.Path) {
		errs = append(errs, validateUniqueLabel(c.Name, names, at.Child("name"))...)
		errs = append(errs, validateContainer(c, spec, volumes, at)...)
	}
	// Init containers that are not sidecars are gone before others use the host's ports: each has its own set.
	taken := map[hostPort]struct{}{}
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		check(c, at)
		ports := map[hostPort]struct{}{}
		if isSidecar(c) {
			ports = taken
		} else {
			errs = append(errs, validateInitContainer(c, at)...)
		}
		errs = append(errs, validatePorts(c.Ports, spec.HostNetwork, ports, at.Child("ports"))...)
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		check(c, at)
		errs = append(errs, validatePorts(c.Ports, spec.HostNetwork, taken, at.Child("ports"))...)
	}
	return errs
}

// validateUniqueLabel checks a name that must be a DNS label and that no earlier one equals; it joins those taken.
func validateUniqueLabel(name string, taken map[string]struct{}, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := invalid(path, name, validation.IsDNS1123Label(name))
	if _, ok := taken[name]; ok {
		errs = append(errs, field.Duplicate(path, name))
	}
	taken[name] = struct{}{}
	return errs
}

// isSidecar reports whether the init container keeps running beside the main ones (KEP-753).
func isSidecar(c *v1.Container) bool {
	return ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways
}

// validateInitContainer checks what only sidecars may have (PodSpec.initContainers).
func validateInitContainer(c *v1.Container, path *field.Path) field.ErrorList {
	const msg = "may not be set for init containers without restartPolicy=Always"
	var errs field.ErrorList
	if c.Lifecycle != nil {
		errs = append(errs, field.Forbidden(path.Child("lifecycle"), msg))
	}
	if c.LivenessProbe != nil {
		errs = append(errs, field.Forbidden(path.Child("livenessProbe"), msg))
	}
	if c.ReadinessProbe != nil {
		errs = append(errs, field.Forbidden(path.Child("readinessProbe"), msg))
	}
	if c.StartupProbe != nil {
		errs = append(errs, field.Forbidden(path.Child("startupProbe"), msg))
	}
	return errs
}

func validateContainer(c *v1.Container, spec *v1.PodSpec, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case c.Image == "":
		errs = append(errs, field.Required(path.Child("image"), ""))
	case c.Image != strings.TrimSpace(c.Image):
		errs = append(errs, field.Invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, validateEnum(c.ImagePullPolicy, path.Child("imagePullPolicy"), v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	errs = append(errs, validateEnum(c.TerminationMessagePolicy, path.Child("terminationMessagePolicy"),
		v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validateRestart(c, path)...)
	errs = append(errs, validateEnv(c, spec, volumes, path)...)
	errs = append(errs, validateMounts(c, volumes, path)...)
	grace := ptr.Deref(spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	errs = append(errs, validateProbes(c, path)...)
	errs = append(errs, validateLifecycle(c.Lifecycle, grace, spec.OS, path.Child("lifecycle"))...)
	errs = append(errs, validateResources(&c.Resources, spec.ResourceClaims, path.Child("resources"))...)
	errs = append(errs, validateResizePolicy(c.ResizePolicy, path.Child("resizePolicy"))...)
	errs = append(errs, validateSecurityContext(c.SecurityContext, spec, path.Child("securityContext"))...)
	return errs
}

// validateRestart checks the container's own restart policy and rules (KEP-5307).
func validateRestart(c *v1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, validateEnum(*c.RestartPolicy, path.Child("restartPolicy"),
			v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)...)
	}
	rules := path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		errs = append(errs, field.Required(path.Child("restartPolicy"), "must be set when `restartPolicyRules` is"))
	}
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		errs = append(errs, field.TooMany(rules, n, maxRestartRules))
	}
	for i, r := range c.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, validateEnum(r.Action, at.Child("action"),
			v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), ""))
			continue
		}
		errs = append(errs, validateEnum(r.ExitCodes.Operator, at.Child("exitCodes", "operator"),
			v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > maxRestartExitCodes {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, maxRestartExitCodes))
		}
	}
	return errs
}

// validateMounts checks volumeMounts and volumeDevices.
func validateMounts(c *v1.Container, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := map[string]struct{}{}
	devices := map[string]struct{}{}
	for _, d := range c.VolumeDevices {
		devices[d.DevicePath] = struct{}{}
	}
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], path.Child("volumeMounts").Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		switch _, taken := paths[m.MountPath]; {
		case m.MountPath == "":
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		case taken:
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		if strings.Contains(m.MountPath, ":") { // VolumeMount.mountPath
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not contain ':'"))
		}
		if _, ok := devices[m.MountPath]; ok {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		paths[m.MountPath] = struct{}{}
		errs = append(errs, validateMountOptions(m, c.SecurityContext, at)...)
	}
	seen := map[string]struct{}{}
	for i, d := range c.VolumeDevices {
		at := path.Child("volumeDevices").Index(i)
		switch v := volumes[d.Name]; {
		case d.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case v == nil:
			errs = append(errs, field.NotFound(at.Child("name"), d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			errs = append(errs, field.Invalid(at.Child("name"), d.Name,
				"can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		switch _, taken := seen[d.DevicePath]; {
		case d.DevicePath == "":
			errs = append(errs, field.Required(at.Child("devicePath"), ""))
		case taken:
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		seen[d.DevicePath] = struct{}{}
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
	propagation := ptr.Deref(m.MountPropagation, v1.MountPropagationNone)
	errs = append(errs, validateEnum(propagation, path.Child("mountPropagation"),
		v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer, v1.MountPropagationNone)...)
	if propagation == v1.MountPropagationBidirectional && (sc == nil || !ptr.Deref(sc.Privileged, false)) {
		errs = append(errs, field.Forbidden(path.Child("mountPropagation"),
			"Bidirectional mount propagation is available only to privileged containers"))
	}
	if r := m.RecursiveReadOnly; r != nil {
		at := path.Child("recursiveReadOnly")
		errs = append(errs, validateEnum(*r, at,
			v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)...)
		if *r == v1.RecursiveReadOnlyEnabled || *r == v1.RecursiveReadOnlyIfPossible {
			if !m.ReadOnly {
				errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
			}
			if propagation != v1.MountPropagationNone {
				errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
			}
		}
	}
	return errs
}

// validateLocalPath checks that the path stays inside the folder that it is relative to.
func validateLocalPath(path string, at *field.Path) field.ErrorList {
	switch {
	case filepath.IsAbs(path):
		return field.ErrorList{field.Invalid(at, path, "must be a relative path")}
	case slices.Contains(strings.Split(path, "/"), ".."):
		return field.ErrorList{field.Invalid(at, path, "must not contain '..'")}
	}
	return nil
}

// validateKeyPath checks the path of a file that a volume is filled with: local, and free for the names that the volume uses itself.
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

// exactlyOne returns an error unless one of the alternatives is set.
func exactlyOne(path *field.Path, what string, set ...bool) *field.Error {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	switch {
	case n == 0:
		return field.Required(path, "must specify a "+what)
	case n > 1:
		return field.Forbidden(path, fmt.Sprintf("may not specify more than 1 %s", what))
	}
	return nil
}
