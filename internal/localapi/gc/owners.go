package gc

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// graph is the ownership graph. Objects without owners are not in it.
type graph struct {
	dependants map[types.UID]map[store.Key]bool // by owner
	sought     map[store.Key]uidSet             // owners not to be searched for in other namespaces
}

func newGraph() *graph {
	return &graph{dependants: map[types.UID]map[store.Key]bool{}, sought: map[store.Key]uidSet{}}
}

// replace updates the owners of an object, and returns the keys of owners that may wait for the
// change.
func (g *graph) replace(before, now *object) map[store.Key]bool {
	concerned := map[store.Key]bool{}
	if before != nil {
		for _, r := range before.meta.OwnerReferences {
			if of := g.dependants[r.UID]; of != nil {
				if delete(of, before.key); len(of) == 0 {
					delete(g.dependants, r.UID)
				}
			}
			if owner, ok := ownerKey(before, r); ok {
				concerned[owner] = true
			}
		}
		if now == nil {
			delete(g.sought, before.key)
		}
	}
	if now != nil {
		for _, r := range now.meta.OwnerReferences {
			if g.dependants[r.UID] == nil {
				g.dependants[r.UID] = map[store.Key]bool{}
			}
			g.dependants[r.UID][now.key] = true
		}
	}
	return concerned
}

// seek reports whether the owner is still to be searched for, which is done once, and marks it.
func (g *graph) seek(dependant store.Key, owner types.UID) bool {
	if g.sought[dependant][owner] {
		return false
	}
	if g.sought[dependant] == nil {
		g.sought[dependant] = uidSet{}
	}
	g.sought[dependant][owner] = true
	return true
}

// kindOf returns the kind of an owner reference; nil if the local API does not have it.
func kindOf(r metav1.OwnerReference) *kinds.Kind {
	group, err := schema.ParseGroupVersion(r.APIVersion)
	i := slices.IndexFunc(kinds.All, func(k kinds.Kind) bool { return k.Group == group.Group && k.GroupVersionKind.Kind == r.Kind })
	if err != nil || i < 0 {
		return nil
	}
	return &kinds.All[i]
}

// ownerKey returns the key of an owner. ok is false if it cannot be determined: the local API does
// not have the kind, or the kind is namespaced and the object is not.
func ownerKey(o *object, r metav1.OwnerReference) (key store.Key, ok bool) {
	k := kindOf(r)
	if k == nil || k.Namespaced && o.key.Namespace == "" {
		return store.Key{}, false
	}
	key = store.Key{Resource: k.Stored, Name: r.Name}
	if k.Namespaced {
		key.Namespace = o.key.Namespace
	}
	return key, true
}

type owners struct {
	solid   []metav1.OwnerReference // exist, or cannot be determined
	gone    uidSet
	waiting uidSet // deleted in the foreground, and blocked by this object
}

func (c *Collector) ownersOf(ctx context.Context, o *object) (owners, error) {
	found := owners{gone: uidSet{}, waiting: uidSet{}}
	for _, r := range o.meta.OwnerReferences {
		key, ok := ownerKey(o, r)
		if !ok {
			if kindOf(r) != nil {
				c.warn(ctx, o, r)
			}
			found.solid = append(found.solid, r)
			continue
		}
		owner, err := c.get(key)
		switch {
		case err != nil:
			return found, err
		case owner == nil || owner.uid() != r.UID:
			found.gone[r.UID] = true
			c.findElsewhere(ctx, o, r)
		case owner.waitsForDependants() && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion:
			found.waiting[r.UID] = true
		default:
			found.solid = append(found.solid, r)
		}
	}
	return found, nil
}

// collect deletes an object whose owners do not exist, and completes the deletion of an owner.
func (c *Collector) collect(ctx context.Context, o *object) error {
	switch {
	case o.deleting() && o.has(metav1.FinalizerOrphanDependents):
		return c.orphan(ctx, o)
	case o.waitsForDependants():
		return c.deleteDependants(ctx, o)
	case o.deleting() || len(o.meta.OwnerReferences) == 0:
		return nil
	}
	owners, err := c.ownersOf(ctx, o)
	switch {
	case err != nil:
		return err
	case len(owners.solid) > 0 && len(owners.gone)+len(owners.waiting) == 0:
		return nil
	case len(owners.solid) > 0:
		return c.setOwners(ctx, o, owners.solid)
	case len(owners.waiting) > 0 && len(c.graph.dependants[o.uid()]) > 0:
		if err := c.unblockCycle(ctx, o); err != nil {
			return err
		}
		return c.delete(ctx, o, metav1.DeletePropagationForeground)
	}
	policy := metav1.DeletePropagationBackground
	switch { // the policy that its finalizers request
	case o.has(metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case o.has(metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return c.delete(ctx, o, policy)
}

func (c *Collector) setOwners(ctx context.Context, o *object, rest []metav1.OwnerReference) error {
	patch, err := o.merge("ownerReferences", append([]metav1.OwnerReference{}, rest...))
	if err != nil {
		return err
	}
	return c.cfg.Writer.Patch(ctx, o.ref(), "", patch)
}

// unblockCycle removes blockOwnerDeletion from an object if one of its own dependents waits too, to
// break a deadlock. It then reads the changed object again.
func (c *Collector) unblockCycle(ctx context.Context, o *object) error {
	for key := range c.graph.dependants[o.uid()] {
		d, err := c.get(key)
		if err != nil {
			return err
		}
		if d == nil || !d.waitsForDependants() {
			continue
		}
		refs := slices.Clone(o.meta.OwnerReferences)
		no := false
		for i := range refs {
			refs[i].BlockOwnerDeletion = &no
		}
		if err := c.setOwners(ctx, o, refs); err != nil {
			return err
		}
		changed, err := c.get(o.key)
		if err == nil && (changed == nil || changed.uid() != o.uid()) {
			err = apierrors.NewNotFound(o.ref().Kind.Resource(), o.key.Name)
		}
		if err == nil {
			*o = *changed
		}
		return err
	}
	return nil
}

// dependantsOf returns the dependents of an object, sorted.
func (c *Collector) dependantsOf(o *object) ([]*object, error) {
	var list []*object
	for key := range c.graph.dependants[o.uid()] {
		d, err := c.get(key)
		if err != nil {
			return nil, err
		}
		if d != nil && slices.ContainsFunc(d.meta.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == o.uid() }) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *object) int { return compareKeys(a.key, b.key) })
	return list, nil
}

// orphan removes the owner reference from the dependents, and then the owner's finalizer.
func (c *Collector) orphan(ctx context.Context, o *object) error {
	list, err := c.dependantsOf(o)
	if err != nil {
		return err
	}
	for _, d := range list {
		rest := slices.DeleteFunc(slices.Clone(d.meta.OwnerReferences), func(r metav1.OwnerReference) bool { return r.UID == o.uid() })
		if err := c.setOwners(ctx, d, rest); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("orphan %s: %w", d.key, err)
		}
	}
	return c.removeFinalizer(ctx, o, metav1.FinalizerOrphanDependents)
}

// deleteDependants removes the finalizer of an owner that no dependent blocks, or collects the
// dependents.
func (c *Collector) deleteDependants(ctx context.Context, o *object) error {
	list, err := c.dependantsOf(o)
	if err != nil {
		return err
	}
	blocked := false
	for _, d := range list {
		for _, r := range d.meta.OwnerReferences {
			blocked = blocked || r.UID == o.uid() && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
		}
	}
	if blocked {
		for _, d := range list {
			if !d.deleting() {
				if err := c.collect(ctx, d); err != nil && !apierrors.IsNotFound(err) {
					return fmt.Errorf("%s: %w", d.key, err)
				}
			}
		}
		return nil
	}
	return c.removeFinalizer(ctx, o, metav1.FinalizerDeleteDependents)
}

func (c *Collector) removeFinalizer(ctx context.Context, o *object, finalizer string) error {
	patch, err := o.merge("finalizers", without(o.meta.Finalizers, finalizer))
	if err != nil {
		return err
	}
	return c.cfg.Writer.Patch(ctx, o.ref(), "", patch)
}

// findElsewhere writes an event if the owner exists in another namespace, where it cannot own the
// object. It searches once per reference.
func (c *Collector) findElsewhere(ctx context.Context, o *object, r metav1.OwnerReference) {
	k := kindOf(r)
	if !k.Namespaced || c.graph.sought[o.key][r.UID] {
		return
	}
	defer c.graph.seek(o.key, r.UID)
	exists := false
	_, err := c.cfg.Store.List(store.Range{Resource: k.Stored}, func(item store.Item) bool {
		if item.Key.Name == r.Name && item.Key.Namespace != o.key.Namespace {
			found, err := decode(item)
			exists = err == nil && found.uid() == r.UID
		}
		return !exists
	})
	if err == nil && exists {
		c.warn(ctx, o, r)
	}
}

// warn writes an event about an invalid owner reference, once.
func (c *Collector) warn(ctx context.Context, o *object, r metav1.OwnerReference) {
	if !c.graph.seek(o.key, r.UID) {
		return
	}
	message := fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q", r.APIVersion, r.Kind, o.key.Namespace, r.Name, r.UID, o.key.Namespace)
	kind := o.ref().Kind
	namespace := o.key.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.Now()
	err := c.cfg.Writer.Create(ctx, &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", o.key.Name, now.UnixNano())},
		InvolvedObject: v1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.GroupVersionKind.Kind, Namespace: o.key.Namespace, Name: o.key.Name,
			UID: o.uid(), ResourceVersion: o.version(),
		},
		Type: v1.EventTypeWarning, Reason: "OwnerRefInvalidNamespace", Message: message,
		Source: v1.EventSource{Component: "garbage-collector-controller"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	})
	if err != nil {
		c.cfg.Log.Warn("event not written", "object", o.key.String(), "message", message, "error", err)
	}
}
