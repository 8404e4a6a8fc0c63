package podconfig

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/source/manifest"
)

// mergeObjectDuplicates drops local objects whose kind, namespace and name an earlier one of the
// set has, and reports them as problems.
func mergeObjectDuplicates(objects []manifest.Object) ([]manifest.Object, []manifest.Problem) {
	first := make(map[string]manifest.Object, len(objects))
	accepted := make([]manifest.Object, 0, len(objects))
	var problems []manifest.Problem
	for _, o := range objects {
		other, taken := first[o.Key()]
		if taken {
			problems = append(problems, explainObjectDuplicate(o, other))
			continue
		}
		first[o.Key()] = o
		accepted = append(accepted, o)
	}
	return accepted, problems
}

func explainObjectDuplicate(o, first manifest.Object) manifest.Problem {
	name := o.GetNamespace() + "/" + o.GetName()
	msg := fmt.Sprintf("%s %s is defined in %s already; this one is ignored: remove one of them, or rename it", o.Kind, name, first.Path)
	if o.Path == first.Path {
		msg = fmt.Sprintf("%s %s is defined twice; only the first one counts: remove one of them, or rename it", o.Kind, name)
	}
	return manifest.Problem{
		Source: o.Source, Path: o.Path, Namespace: o.GetNamespace(), Name: o.GetName(),
		Severity: manifest.SeverityError, Message: msg,
	}
}

// mergeObjects returns the effective local objects: the first source that defines one wins.
// Duplicates of later sources are reported as problems.
func mergeObjects(feeds []*feed) ([]manifest.Object, []manifest.Problem) {
	var all []manifest.Object
	for _, f := range feeds {
		all = append(all, f.newest.objects...)
	}
	return mergeObjectDuplicates(all)
}

// LocalObjects are the effective objects of manifests, except pods.
type LocalObjects struct {
	All []manifest.Object
	// Complete: every source has been read. Before that, a missing object may only not have been
	// read yet.
	Complete bool
}

// takeObjects returns the effective local objects, and whether they differ from the previous
// call's. An unchanged object is the same pointer as before. The caller holds c.mu.
func (c *PodConfig) takeObjects() (objects LocalObjects, changed bool) {
	before := c.taken
	c.taken.All, _ = mergeObjects(c.feeds)
	c.taken.Complete = c.seenAllLocked()
	same := slices.EqualFunc(c.taken.All, before.All, func(a, b manifest.Object) bool { return a.Object == b.Object })
	return c.taken, !same || c.taken.Complete != before.Complete
}

// refuseChanges rejects objects in now that would change an immutable one of old, as the API server
// does; the old ones then stay.
func refuseChanges(old []manifest.Object, now manifest.Decoded) manifest.Decoded {
	fixed := map[string]metav1.Object{}
	for _, a := range old {
		if isImmutable(a.Object) {
			fixed[a.Key()] = a.Object
		}
	}
	if len(fixed) == 0 {
		return now
	}
	out := manifest.Decoded{Problems: slices.Clone(now.Problems)}
	for _, a := range now.Objects {
		before, ok := fixed[a.Key()]
		if !ok || isImmutable(a.Object) && hasSameValues(before, a.Object) {
			out.Objects = append(out.Objects, a)
			continue
		}
		out.Problems = append(out.Problems, manifest.Problem{
			Source: a.Source, Path: a.Path, Namespace: a.GetNamespace(), Name: a.GetName(), Severity: manifest.SeverityError,
			Message: fmt.Sprintf("%s %s is immutable: give the new values another name, or take this document away before it comes with them",
				a.Kind, a.GetNamespace()+"/"+a.GetName()),
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
