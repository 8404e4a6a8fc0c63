package podconfig

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// mergeObjectDuplicates drops local objects that an earlier one of the set has the kind, namespace and name of, and names them as problems.
func mergeObjectDuplicates(objects []accepted) ([]accepted, []Problem) {
	first := make(map[string]accepted, len(objects))
	kept := make([]accepted, 0, len(objects))
	var problems []Problem
	for _, o := range objects {
		other, taken := first[o.key()]
		if taken {
			problems = append(problems, explainObjectDuplicate(o, other))
			continue
		}
		first[o.key()] = o
		kept = append(kept, o)
	}
	return kept, problems
}

// computeObjectClashes names the local objects that an earlier source has, too: that one's is in force.
func computeObjectClashes(feeds []*feed) []Problem {
	first := map[string]accepted{}
	var problems []Problem
	for _, f := range feeds {
		for _, o := range f.newest.objects {
			other, taken := first[o.key()]
			if taken {
				problems = append(problems, explainObjectDuplicate(o, other))
				continue
			}
			first[o.key()] = o
		}
	}
	return problems
}

func explainObjectDuplicate(o, first accepted) Problem {
	name := o.Object.GetNamespace() + "/" + o.Object.GetName()
	msg := fmt.Sprintf("%s %s is defined in %s already; this one is ignored: remove one of them, or rename it", o.kind, name, first.path)
	if o.path == first.path {
		msg = fmt.Sprintf("%s %s is defined twice; only the first one counts: remove one of them, or rename it", o.kind, name)
	}
	return Problem{
		Source: o.source, Path: o.path, Namespace: o.Object.GetNamespace(), Name: o.Object.GetName(),
		Severity: SeverityError, Message: msg,
	}
}

// mergeObjects returns the local objects that are in force: the first source that defines one has it.
func mergeObjects(feeds []*feed) []accepted {
	defined := map[string]bool{}
	var out []accepted
	for _, f := range feeds {
		for _, o := range f.newest.objects {
			if !defined[o.key()] {
				defined[o.key()] = true
				out = append(out, o)
			}
		}
	}
	return out
}

// takeObjects returns the local objects that are in force, and whether they differ from those that it returned before. An object that a
// manifest still defines is the same one as before. The caller holds c.mu.
func (c *PodConfig) takeObjects() (objects LocalObjects, changed bool) {
	newest := mergeObjects(c.feeds)
	if slices.EqualFunc(newest, c.taken, func(a, b accepted) bool { return a.Object == b.Object }) {
		return LocalObjects{}, false
	}
	c.taken = newest
	return newLocalObjects(newest), true
}

// refuseChanges takes those objects out of now that would change an immutable one of old, as the API server does; the old ones then stay.
func refuseChanges(old []accepted, now decoded) decoded {
	fixed := map[string]metav1.Object{}
	for _, a := range old {
		if isImmutable(a.Object) {
			fixed[a.key()] = a.Object
		}
	}
	if len(fixed) == 0 {
		return now
	}
	out := decoded{problems: slices.Clone(now.problems)}
	for _, a := range now.objects {
		before, ok := fixed[a.key()]
		if !ok || isImmutable(a.Object) && hasSameValues(before, a.Object) {
			out.objects = append(out.objects, a)
			continue
		}
		out.problems = append(out.problems, Problem{
			Source: a.source, Path: a.path, Namespace: a.Object.GetNamespace(), Name: a.Object.GetName(), Severity: SeverityError,
			Message: fmt.Sprintf("%s %s is immutable: give the new values another name, or take this document away before it comes with them",
				a.kind, a.Object.GetNamespace()+"/"+a.Object.GetName()),
		})
	}
	return out
}

func isImmutable(o metav1.Object) bool {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return ptr.Deref(o.Immutable, false)
	case *v1.Secret:
		return ptr.Deref(o.Immutable, false)
	}
	return false
}

// hasSameValues compares two objects of one kind.
func hasSameValues(a, b metav1.Object) bool {
	switch a := a.(type) {
	case *v1.ConfigMap:
		b, ok := b.(*v1.ConfigMap)
		return ok && equality.Semantic.DeepEqual(a.Data, b.Data) && equality.Semantic.DeepEqual(a.BinaryData, b.BinaryData)
	case *v1.Secret:
		b, ok := b.(*v1.Secret)
		return ok && a.Type == b.Type && equality.Semantic.DeepEqual(a.Data, b.Data)
	}
	return false
}
