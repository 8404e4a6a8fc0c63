package validation

import (
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

// validateContainers checks the init and regular containers; volumes are the pod's, by name.
func validateContainers(spec *v1.PodSpec, volumes map[string]*v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), "a pod needs at least one container"))
	}
	names := map[string]struct{}{}
	ports := map[hostPort]struct{}{}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(errs, validateUniqueLabel(c.Name, names, at.Child("name"))...)
		names[c.Name] = struct{}{}
		errs = append(errs, validateContainer(c, spec, volumes, at)...)
		errs = append(errs, validateProbesAndHooks(c, spec, at)...)
		errs = append(errs, validateRestart(c, at)...)
		errs = append(errs, validatePorts(c.Ports, ports, at.Child("ports"))...)
		if spec.HostNetwork {
			errs = append(errs, validateHostPorts(c.Ports, at.Child("ports"))...)
		}
	}
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		errs = append(errs, validateUniqueLabel(c.Name, names, at.Child("name"))...)
		if c.Name != "" {
			names[c.Name] = struct{}{}
		}
		errs = append(errs, validateContainer(c, spec, volumes, at)...)
		if isSidecar(c) {
			errs = append(errs, validateProbesAndHooks(c, spec, at)...)
		} else {
			errs = append(errs, validateInitContainer(c, at)...)
		}
		if missing := validateRestartPolicySet(c, at); len(missing) > 0 {
			// The rules depend on the policy, which decides whether this is a sidecar.
			errs = append(errs, missing...)
		} else {
			errs = append(errs, validateRestart(c, at)...)
		}
		// An init container has exited before others use the host's ports.
		errs = append(errs, validatePorts(c.Ports, map[hostPort]struct{}{}, at.Child("ports"))...)
	}
	return errs
}

// validateUniqueLabel checks that a name is a DNS label and not taken.
func validateUniqueLabel[T any](name string, taken map[string]T, path *field.Path) field.ErrorList {
	errs := required(path, name)
	if name != "" {
		errs = append(errs, invalid(path, name, validation.IsDNS1123Label(name))...)
	}
	if _, ok := taken[name]; ok {
		errs = append(errs, field.Duplicate(path, name))
	}
	return errs
}

// isSidecar reports whether the init container keeps running beside the regular ones (KEP-753).
func isSidecar(c *v1.Container) bool {
	return ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways
}

// validateInitContainer checks fields that only sidecars may have (PodSpec.initContainers).
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
	errs = append(errs, validateEnv(c, spec, path)...)
	errs = append(errs, validateMounts(c, volumes, path)...)
	errs = append(errs, validateDevices(c, volumes, path)...)
	errs = append(errs, validateResources(&c.Resources, spec.ResourceClaims, path.Child("resources"))...)
	errs = append(errs, validateResizePolicy(c.ResizePolicy, spec.RestartPolicy, path.Child("resizePolicy"))...)
	return append(errs, validateSecurityContext(c.SecurityContext, spec, path.Child("securityContext"))...)
}

// validateProbesAndHooks checks probes and hooks of sidecars and regular containers.
func validateProbesAndHooks(c *v1.Container, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	grace := ptr.Deref(spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	return append(validateProbes(c, path), validateLifecycle(c.Lifecycle, grace, spec.OS, path.Child("lifecycle"))...)
}

// validateRestartPolicySet checks that restart rules come with a restart policy.
func validateRestartPolicySet(c *v1.Container, path *field.Path) field.ErrorList {
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		return field.ErrorList{field.Required(path.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")}
	}
	return nil
}

// validateRestart checks the container's own restart policy and rules (KEP-5307).
func validateRestart(c *v1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateChoice(c.RestartPolicy, path.Child("restartPolicy"),
		v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)...)
	errs = append(errs, validateRestartPolicySet(c, path)...)
	rules := path.Child("restartPolicyRules")
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		errs = append(errs, field.TooMany(rules, n, maxRestartRules))
	}
	for i, r := range c.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, validateChoice(&r.Action, at.Child("action"),
			v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), ""))
			continue
		}
		errs = append(errs, validateChoice(&r.ExitCodes.Operator, at.Child("exitCodes", "operator"),
			v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > maxRestartExitCodes {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, maxRestartExitCodes))
		}
	}
	return errs
}
