package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// byteResources are the resources of containers and pods that are counted in bytes.
var byteResources = []v1.ResourceName{v1.ResourceMemory, v1.ResourceEphemeralStorage}

// WarnPod returns the API server's warnings about the pod: fractional amounts of bytes, such as
// "128m" of memory. The pod is as in its manifest, without defaults.
func WarnPod(p *v1.Pod) []string {
	var warnings []string
	warn := func(path *field.Path, q resource.Quantity) {
		if _, whole := q.AsScale(0); whole {
			return
		}
		text := q.String()
		hint := ""
		if number, ok := strings.CutSuffix(text, "m"); ok {
			hint = fmt.Sprintf("; %s is thousandths of a byte: did you mean %[2]sM or %[2]sMi?", text, number)
		}
		warnings = append(warnings, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer%s", path, text, hint))
	}
	amounts := func(path *field.Path, r *v1.ResourceRequirements) {
		for list, of := range map[string]v1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
			for _, name := range byteResources {
				if q, ok := of[name]; ok {
					warn(path.Child("resources", list).Key(string(name)), q)
				}
			}
		}
	}
	spec := field.NewPath("spec")
	for list, of := range map[string][]v1.Container{"initContainers": p.Spec.InitContainers, "containers": p.Spec.Containers} {
		for i := range of {
			amounts(spec.Child(list).Index(i), &of[i].Resources)
		}
	}
	if p.Spec.Resources != nil {
		amounts(spec, p.Spec.Resources)
	}
	for i, v := range p.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
			warn(spec.Child("volumes").Index(i).Child("emptyDir", "sizeLimit"), *v.EmptyDir.SizeLimit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Spec.Overhead)) {
		if slices.Contains(byteResources, name) {
			warn(spec.Child("overhead").Key(string(name)), p.Spec.Overhead[name])
		}
	}
	slices.Sort(warnings)
	return warnings
}
