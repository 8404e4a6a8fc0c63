package kube

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// reflected is the side of a Watch that the reflector writes to.
type reflected[P Watchable] Watch[P]

// Replace stores a complete list, or rejects it: then the reflector lists again.
func (r *reflected[P]) Replace(list []any, _ string) error {
	w, first := (*Watch[P])(r), r.first
	w.first = nil
	err := w.replace(list)
	switch {
	case err != nil:
		if first != nil {
			first.stream.Stop() // the reflector does not stop it
		}
		w.note(w.ctx, err)
	case first != nil:
		first.size.lift()
		w.note(w.ctx, nil)
	}
	return err
}

func (w *Watch[P]) replace(list []any) error {
	objects := make(map[types.NamespacedName]P, len(list))
	for _, item := range list {
		o, err := accept[P](item)
		if err != nil {
			return err
		}
		objects[keyOf(o)] = o
	}
	if err := w.confirm(w.ctx, objects); err != nil {
		return err
	}
	w.mu.Lock()
	first := w.objects == nil
	w.objects = objects
	w.mu.Unlock()
	if first {
		close(w.synced)
	}
	w.changed()
	return nil
}

// confirm lists again if a list has none of the previous objects, this time the newest stored
// version rather than the server's cache: one wrong list must not terminate all pods of the node.
// Single deletions from a watch need no confirmation. Differs from the kubelet, which trusts such a
// list.
func (w *Watch[P]) confirm(ctx context.Context, objects map[types.NamespacedName]P) error {
	had := w.had()
	for _, o := range objects {
		if had[o.GetUID()] {
			return nil
		}
	}
	if len(had) == 0 {
		return nil
	}
	w.log.WarnContext(ctx, "a list has nothing of what there was: asking again", "were", len(had), "listed", len(objects))
	again, err := w.listObjects(ctx, w.selector.apply(metav1.ListOptions{}))
	if err != nil {
		return fmt.Errorf("confirm a list without any of the %d %s that there were: %w", len(had), w.resource.plural, err)
	}
	left := 0
	err = meta.EachListItem(again, func(item runtime.Object) error {
		if o, ok := item.(P); ok && had[o.GetUID()] {
			left++
		}
		return nil
	})
	if err == nil && left > 0 {
		err = fmt.Errorf("list %s: the server contradicts itself: one list has none of the %d that there were, the next one has %d of them",
			w.resource.plural, len(had), left)
	}
	return err
}

// had returns the UIDs of the current set, or of the expected one before the first list.
func (w *Watch[P]) had() map[types.UID]bool {
	w.mu.Lock()
	had := make(map[types.UID]bool, len(w.objects))
	for _, o := range w.objects {
		had[o.GetUID()] = true
	}
	first := w.objects == nil
	w.mu.Unlock()
	if first && w.expected != nil {
		for _, uid := range w.expected() {
			had[uid] = true
		}
	}
	return had
}

// Add stores a new or changed object.
func (r *reflected[P]) Add(item any) error {
	o, err := accept[P](item)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if r.objects == nil {
		r.mu.Unlock()
		return errNotListed
	}
	r.objects[keyOf(o)] = o
	r.mu.Unlock()
	r.changed()
	return nil
}

// Update is Add.
func (r *reflected[P]) Update(item any) error { return r.Add(item) }

// Delete removes an object.
func (r *reflected[P]) Delete(item any) error {
	o, err := accept[P](item)
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.objects, keyOf(o))
	r.mu.Unlock()
	r.changed()
	return nil
}

// Resync does nothing: nothing is derived from the set.
func (r *reflected[P]) Resync() error { return nil }

var errNotListed = errors.New("a change came before the list that it changes")

// accept checks the type of an object and drops managedFields, which are not used and half of an
// object's size.
func accept[P Watchable](item any) (P, error) {
	o, ok := item.(P)
	if !ok {
		var none P
		return none, fmt.Errorf("the server sent a %T instead of a %T", item, none)
	}
	o.SetManagedFields(nil)
	return o, nil
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
