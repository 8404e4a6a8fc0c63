package validation

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	requiredDuring  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredDuring = "preferredDuringSchedulingIgnoredDuringExecution"
)

func validateAffinity(a *v1.Affinity, path *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		errs = append(errs, validateNodeAffinity(n, path.Child("nodeAffinity"))...)
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validatePodAffinity(p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validatePodAffinity(p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))...)
	}
	return errs
}

func validateWeight(weight int32, path *field.Path) field.ErrorList {
	if weight < 1 || weight > 100 {
		return field.ErrorList{field.Invalid(path.Child("weight"), weight, "must be in the range 1-100")}
	}
	return nil
}

func validateNodeAffinity(n *v1.NodeAffinity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		at := path.Child(requiredDuring, "nodeSelectorTerms")
		if len(r.NodeSelectorTerms) == 0 {
			errs = append(errs, field.Required(at, "must have at least one node selector term"))
		}
		for i := range r.NodeSelectorTerms {
			errs = append(errs, validateNodeSelectorTerm(&r.NodeSelectorTerms[i], at.Index(i))...)
		}
	}
	for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
		p, at := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], path.Child(preferredDuring).Index(i)
		errs = append(errs, validateWeight(p.Weight, at)...)
		errs = append(errs, validateNodeSelectorTerm(&p.Preference, at.Child("preference"))...)
	}
	return errs
}

func validateNodeSelectorTerm(t *v1.NodeSelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range t.MatchExpressions {
		r, at := &t.MatchExpressions[i], path.Child("matchExpressions").Index(i)
		switch r.Operator {
		case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'"))
			}
		case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				errs = append(errs, field.Forbidden(at.Child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
			}
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			if len(r.Values) != 1 {
				errs = append(errs, field.Required(at.Child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'"))
			}
		default:
			errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
		errs = append(errs, metavalidation.ValidateLabelName(r.Key, at.Child("key"))...)
		for j, value := range r.Values {
			errs = append(errs, invalid(at.Child("values").Index(j), value, validation.IsValidLabelValue(value))...)
		}
	}
	for i := range t.MatchFields {
		errs = append(errs, validateNodeFieldSelector(&t.MatchFields[i], path.Child("matchFields").Index(i))...)
	}
	return errs
}

// validateNodeFieldSelector checks a selector of nodes by a field; the only one is metadata.name.
func validateNodeFieldSelector(r *v1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(path.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		errs = append(errs, field.Invalid(path.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Key != metav1.ObjectNameField {
		return append(errs, field.Invalid(path.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, name := range r.Values {
		errs = append(errs, invalid(path.Child("values").Index(i), name, validation.IsDNS1123Subdomain(name))...)
	}
	return errs
}

func validatePodAffinity(must []v1.PodAffinityTerm, should []v1.WeightedPodAffinityTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range must {
		errs = append(errs, validatePodAffinityTerm(&must[i], path.Child(requiredDuring).Index(i))...)
	}
	for i := range should {
		at := path.Child(preferredDuring).Index(i)
		errs = append(errs, validateWeight(should[i].Weight, at)...)
		errs = append(errs, validatePodAffinityTerm(&should[i].PodAffinityTerm, at.Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodAffinityTerm(t *v1.PodAffinityTerm, path *field.Path) field.ErrorList {
	errs := validateSelector(t.LabelSelector, path.Child("labelSelector"))
	errs = append(errs, validateSelector(t.NamespaceSelector, path.Child("namespaceSelector"))...)
	for i, name := range t.Namespaces {
		errs = append(errs, invalid(path.Child("namespaces").Index(i), name, validation.IsDNS1123Label(name))...)
	}
	errs = append(errs, validateLabelKeys(t.MatchLabelKeys, t.LabelSelector, path.Child("matchLabelKeys"))...)
	errs = append(errs, validateLabelKeys(t.MismatchLabelKeys, t.LabelSelector, path.Child("mismatchLabelKeys"))...)
	excluded := map[string]struct{}{}
	for _, key := range t.MismatchLabelKeys {
		excluded[key] = struct{}{}
	}
	for i, key := range t.MatchLabelKeys {
		if _, ok := excluded[key]; ok {
			errs = append(errs, field.Invalid(path.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	errs = append(errs, required(path.Child("topologyKey"), t.TopologyKey)...)
	return append(errs, metavalidation.ValidateLabelName(t.TopologyKey, path.Child("topologyKey"))...)
}

func validateSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, path)
}

// validateLabelKeys checks the keys whose values a selector takes from the pod's own labels
// (KEP-3243, KEP-3633).
func validateLabelKeys(keys []string, s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if len(keys) == 0 {
		return nil
	}
	if s == nil {
		return field.ErrorList{field.Forbidden(path, "must not be specified when labelSelector is not set")}
	}
	var errs field.ErrorList
	for i, key := range keys {
		errs = append(errs, metavalidation.ValidateLabelName(key, path.Index(i))...)
	}
	return errs
}

func validateTopologySpread(constraints []v1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range constraints {
		c, at := &constraints[i], path.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		errs = append(errs, validateChoice(&c.WhenUnsatisfiable, at.Child("whenUnsatisfiable"), v1.DoNotSchedule, v1.ScheduleAnyway)...)
		for _, later := range constraints[i+1:] {
			if later.TopologyKey == c.TopologyKey && later.WhenUnsatisfiable == c.WhenUnsatisfiable {
				errs = append(errs, field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"),
					fmt.Sprintf("{%s, %s}", c.TopologyKey, c.WhenUnsatisfiable)))
				break
			}
		}
		if m := c.MinDomains; m != nil {
			switch {
			case *m <= 0:
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m, "must be greater than zero"))
			case c.WhenUnsatisfiable != v1.DoNotSchedule:
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", v1.DoNotSchedule, c.WhenUnsatisfiable)))
			}
		}
		for _, p := range []struct {
			field  string
			policy *v1.NodeInclusionPolicy
		}{{"nodeAffinityPolicy", c.NodeAffinityPolicy}, {"nodeTaintsPolicy", c.NodeTaintsPolicy}} {
			errs = append(errs, validateChoice(p.policy, at.Child(p.field), v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore)...)
		}
		errs = append(errs, validateSelector(c.LabelSelector, at.Child("labelSelector"))...)
		errs = append(errs, validateLabelKeys(c.MatchLabelKeys, c.LabelSelector, at.Child("matchLabelKeys"))...)
	}
	return errs
}
