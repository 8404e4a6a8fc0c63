package validation

import (
	v1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePlacement(p *v1.Pod, path *field.Path) field.ErrorList {
	spec := &p.Spec
	var errs field.ErrorList
	for _, n := range []struct {
		field, value string
	}{
		{"nodeName", spec.NodeName},
		{"serviceAccountName", spec.ServiceAccountName},
		{"priorityClassName", spec.PriorityClassName},
	} {
		if n.value != "" {
			errs = append(errs, invalid(path.Child(n.field), n.value, validation.IsDNS1123Subdomain(n.value))...)
		}
	}
	if c := spec.RuntimeClassName; c != nil {
		errs = append(errs, invalid(path.Child("runtimeClassName"), *c, validation.IsDNS1123Subdomain(*c))...)
	}
	errs = append(errs, metavalidation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	if p := spec.PreemptionPolicy; p != nil {
		errs = append(errs, validateEnum(*p, path.Child("preemptionPolicy"), v1.PreemptLowerPriority, v1.PreemptNever)...)
	}
	for i := range spec.Tolerations {
		errs = append(errs, validateToleration(&spec.Tolerations[i], path.Child("tolerations").Index(i))...)
	}
	errs = append(errs, validateAffinity(spec.Affinity, path.Child("affinity"))...)
	errs = append(errs, validateTopologySpread(spec.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	return append(errs, validateSchedulingGates(spec.SchedulingGates, path.Child("schedulingGates"))...)
}

func validateSchedulingGates(gates []v1.PodSchedulingGate, path *field.Path) field.ErrorList {
	if len(gates) == 0 {
		return nil
	}
	errs := field.ErrorList{field.Forbidden(path, "a static pod is bound to its node and cannot wait for the scheduler")}
	seen := map[string]struct{}{}
	for i, g := range gates {
		errs = append(errs, invalid(path.Index(i), g.Name, validation.IsQualifiedName(g.Name))...)
		if _, ok := seen[g.Name]; ok {
			errs = append(errs, field.Duplicate(path.Index(i), g.Name))
		}
		seen[g.Name] = struct{}{}
	}
	return errs
}

func validateToleration(t *v1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, metavalidation.ValidateLabelName(t.Key, path.Child("key"))...)
	} else if t.Operator != v1.TolerationOpExists {
		errs = append(errs, field.Invalid(path.Child("operator"), t.Operator,
			"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(path.Child("effect"), t.Effect,
			"effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case v1.TolerationOpEqual, "":
		errs = append(errs, invalid(path.Child("operator"), t.Value, validation.IsValidLabelValue(t.Value))...)
	case v1.TolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(path.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
		}
	default: // Lt and Gt too: TaintTolerationComparisonOperators is off
		errs = append(errs, validateEnum(t.Operator, path.Child("operator"), v1.TolerationOpEqual, v1.TolerationOpExists)...)
	}
	if t.Effect != "" {
		errs = append(errs, validateEnum(t.Effect, path.Child("effect"),
			v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)...)
	}
	return errs
}
