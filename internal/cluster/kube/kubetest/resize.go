package kubetest

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// resizable are the resources that the resize subresource changes (KEP-1287).
var resizable = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// defaultResources sets the server's defaults in the resources of a container.
func defaultResources(c *v1.Container) {
	r := &c.Resources
	if r.Requests == nil && len(r.Limits) > 0 {
		r.Requests = v1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, asked := r.Requests[name]; !asked {
			r.Requests[name] = limit
		}
	}
}

// keepResize accepts changes of the CPU and memory of containers and of the pod. Changes of other
// resources are rejected; all other changes are ignored.
func keepResize(new, old object) error {
	n, isPod := new.(*v1.Pod)
	if !isPod {
		return notFound()
	}
	o := old.(*v1.Pod)
	n.Status = o.Status
	n.ObjectMeta = *o.ObjectMeta.DeepCopy()
	spec := o.Spec.DeepCopy()
	for _, lists := range [][2][]v1.Container{{spec.Containers, n.Spec.Containers}, {spec.InitContainers, n.Spec.InitContainers}} {
		if len(lists[0]) != len(lists[1]) {
			return forbiddenField("Pod", o.Name, "spec", "pod updates may not add or remove containers")
		}
		for i := range lists[0] {
			was, is := &lists[0][i], &lists[1][i]
			takeResizable(&was.Resources, &is.Resources)
			was.ResizePolicy = is.ResizePolicy
			if !apiequality.Semantic.DeepEqual(was.Resources, is.Resources) {
				return forbiddenField("Pod", o.Name, "spec", "only cpu and memory resources are mutable")
			}
		}
	}
	if spec.Resources != nil && n.Spec.Resources != nil {
		takeResizable(spec.Resources, n.Spec.Resources)
	}
	n.Spec = *spec
	if qosClass(n) != qosClass(o) {
		return forbiddenField("Pod", o.Name, "spec", "Pod QOS Class may not change as a result of resizing")
	}
	return nil
}

// takeResizable copies the amounts of resizable resources.
func takeResizable(into, from *v1.ResourceRequirements) {
	take := func(into, from v1.ResourceList) v1.ResourceList {
		out := maps.Clone(into)
		for _, name := range resizable {
			q, asked := from[name]
			if asked && out == nil {
				out = v1.ResourceList{}
			}
			if asked {
				out[name] = q
			} else {
				delete(out, name)
			}
		}
		return out
	}
	into.Requests, into.Limits = take(into.Requests, from.Requests), take(into.Limits, from.Limits)
}

// Resize changes the resources of a pod as a client does, through the pod's resize subresource.
func Resize(s *Server, namespace, name string, change func(*v1.Pod)) error {
	e := &exchange{server: s, kind: kindOf[*v1.Pod](), request: &Request{Namespace: namespace, Name: name, Verb: "update", Subresource: "resize"}}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := e.find()
	if err != nil {
		return err
	}
	p := old.DeepCopyObject().(*v1.Pod)
	change(p)
	_, err = e.replace(old, p)
	return err
}
