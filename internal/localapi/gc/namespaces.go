package gc

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// syncNamespace creates the default objects of a namespace, or finalizes a deleted one. done
// reports that no more is to be done now.
func (c *Collector) syncNamespace(ctx context.Context, o *object) (done bool, err error) {
	ns, err := whole[*v1.Namespace](o)
	if err != nil {
		return true, err
	}
	if !o.deleting() {
		return false, c.ensureDefaults(ctx, ns.Name)
	}
	if !slices.Contains(ns.Spec.Finalizers, v1.FinalizerKubernetes) {
		return false, nil
	}
	left, failed := c.deleteContent(ctx, ns.Name)
	if left.total() == 0 && failed == nil {
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f v1.FinalizerName) bool { return f == v1.FinalizerKubernetes })
		return true, c.cfg.Writer.Finalize(ctx, ns)
	}
	if err := c.setConditions(ctx, o, ns, left.conditions(failed)); err != nil {
		return true, err
	}
	return true, failed
}

// ensureDefaults creates the default objects of a namespace, and restores the data of ConfigMaps
// among them.
func (c *Collector) ensureDefaults(ctx context.Context, namespace string) error {
	if c.cfg.Defaults == nil {
		return nil
	}
	for _, want := range c.cfg.Defaults(namespace) {
		key, err := keyOf(want)
		if err != nil {
			return err
		}
		have, err := c.get(key)
		if err != nil {
			return err
		}
		if have == nil {
			if err := c.cfg.Writer.Create(ctx, want); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create %s: %w", key, err)
			}
			continue
		}
		if err := c.ensureData(ctx, have, want); err != nil {
			return err
		}
	}
	return nil
}

func (c *Collector) ensureData(ctx context.Context, have *object, want kinds.Object) error {
	m, ok := want.(*v1.ConfigMap)
	if !ok {
		return nil
	}
	is, err := whole[*v1.ConfigMap](have)
	if err != nil || reflect.DeepEqual(is.Data, m.Data) {
		return err
	}
	patch := map[string]any{}
	for key := range is.Data {
		patch[key] = nil
	}
	for key, value := range m.Data {
		patch[key] = value
	}
	b, err := json.Marshal(map[string]any{"data": patch})
	if err != nil {
		return err
	}
	return c.cfg.Writer.Patch(ctx, have.ref(), "", b)
}

// keyOf returns the key under which an object is stored.
func keyOf(o kinds.Object) (store.Key, error) {
	kind := kinds.Of(o)
	if kind == nil {
		return store.Key{}, fmt.Errorf("%T is no kind of the local API", o)
	}
	return store.Key{Resource: kind.Stored, Namespace: o.GetNamespace(), Name: o.GetName()}, nil
}

// content is the remaining content of a namespace.
type content struct {
	objects    map[string]int // by resource
	finalizers map[string]int // number of objects with each
}

func (c content) total() (n int) {
	for _, of := range c.objects {
		n += of
	}
	return n
}

// deleteContent deletes the content of a namespace, pods first, and returns what it found.
func (c *Collector) deleteContent(ctx context.Context, namespace string) (content, error) {
	left := content{map[string]int{}, map[string]int{}}
	var failed error
	for _, resource := range stored() { // pods are first
		if !refTo(store.Key{Resource: resource}).Kind.Namespaced {
			continue
		}
		list, err := c.list(store.Range{Resource: resource, Namespace: namespace})
		if err != nil {
			return left, err
		}
		for _, o := range list {
			left.objects[resource]++
			for _, f := range o.meta.Finalizers {
				left.finalizers[f]++
			}
			if o.deleting() {
				continue
			}
			err := c.delete(ctx, o, metav1.DeletePropagationBackground)
			if err != nil && !apierrors.IsNotFound(err) && failed == nil {
				failed = fmt.Errorf("delete %s: %w", o.key, err)
			}
		}
		if resource == "pods" && len(list) > 0 {
			break // delete what they use after them
		}
	}
	return left, failed
}

func (c *Collector) list(r store.Range) (list []*object, err error) {
	var failed error
	_, err = c.cfg.Store.List(r, func(item store.Item) bool {
		item.Value = slices.Clone(item.Value) // it is valid only during this call
		var o *object
		if o, failed = decode(item); failed == nil {
			list = append(list, o)
		}
		return failed == nil
	})
	if err == nil {
		err = failed
	}
	return list, err
}

// conditions returns the conditions of a terminating namespace, with kube-controller-manager's
// messages.
func (c content) conditions(failed error) []v1.NamespaceCondition {
	list := []v1.NamespaceCondition{
		{Type: v1.NamespaceDeletionDiscoveryFailure, Status: v1.ConditionFalse, Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"},
		{Type: v1.NamespaceDeletionGVParsingFailure, Status: v1.ConditionFalse, Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"},
		{Type: v1.NamespaceDeletionContentFailure, Status: v1.ConditionFalse, Reason: "ContentDeleted", Message: "All content successfully deleted, may be waiting on finalization"},
		{Type: v1.NamespaceContentRemaining, Status: v1.ConditionFalse, Reason: "ContentRemoved", Message: "All content successfully removed"},
		{Type: v1.NamespaceFinalizersRemaining, Status: v1.ConditionFalse, Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"},
	}
	if failed != nil {
		list[2].Status, list[2].Reason, list[2].Message = v1.ConditionTrue, "ContentDeletionFailed", "Failed to delete all resource types, 1 remaining: "+failed.Error()
	}
	if c.total() > 0 {
		var parts []string
		for _, resource := range slices.Sorted(maps.Keys(c.objects)) {
			name := resource
			if !strings.Contains(name, ".") {
				name += "."
			}
			parts = append(parts, fmt.Sprintf("%s has %d resource instances", name, c.objects[resource]))
		}
		list[3].Status, list[3].Reason, list[3].Message = v1.ConditionTrue, "SomeResourcesRemain", "Some resources are remaining: "+strings.Join(parts, ", ")
	}
	if len(c.finalizers) > 0 {
		var parts []string
		for _, f := range slices.Sorted(maps.Keys(c.finalizers)) {
			parts = append(parts, fmt.Sprintf("%s in %d resource instances", f, c.finalizers[f]))
		}
		list[4].Status, list[4].Reason = v1.ConditionTrue, "SomeFinalizersRemain"
		list[4].Message = "Some content in the namespace has finalizers remaining: " + strings.Join(parts, ", ")
	}
	return list
}

func (c *Collector) setConditions(ctx context.Context, o *object, ns *v1.Namespace, want []v1.NamespaceCondition) error {
	changed := false
	all := slices.Clone(ns.Status.Conditions)
	for _, w := range want {
		i := slices.IndexFunc(all, func(h v1.NamespaceCondition) bool { return h.Type == w.Type })
		if i >= 0 && all[i].Status == w.Status && all[i].Reason == w.Reason && all[i].Message == w.Message {
			continue
		}
		changed = true
		w.LastTransitionTime = metav1.Now()
		if i < 0 {
			all = append(all, w)
			continue
		}
		if all[i].Status == w.Status {
			w.LastTransitionTime = all[i].LastTransitionTime
		}
		all[i] = w
	}
	if !changed {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.uid(), "resourceVersion": o.version()}, "status": map[string]any{"conditions": all},
	})
	if err != nil {
		return err
	}
	return c.cfg.Writer.Patch(ctx, o.ref(), "status", patch)
}
