package manifest

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// systemPriorities are the built-in priority classes with their values (Kubernetes documentation,
// "Guaranteed Scheduling For Critical Add-On Pods").
var systemPriorities = map[string]int32{
	"system-cluster-critical": 2_000_000_000,
	"system-node-critical":    2_000_001_000,
}

// resolvePriority sets the pod's priority to that of its class, as the API server's admission
// plugin Priority does. It rejects other classes unless the pod sets the value itself.
func resolvePriority(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	class := spec.PriorityClassName
	value, known := systemPriorities[class]
	switch {
	case class == "":
	case !known && spec.Priority == nil:
		return field.ErrorList{field.Forbidden(path.Child("priorityClassName"), "needs the class "+class+" of a cluster: set priority to its value")}
	case known && spec.Priority == nil:
		spec.Priority = &value
	case known && *spec.Priority != value:
		return field.ErrorList{field.Invalid(path.Child("priority"), *spec.Priority,
			fmt.Sprintf("is not that of the class %s, %d: remove one of them", class, value))}
	}
	return nil
}
