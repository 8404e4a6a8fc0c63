package manifests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// definable are the stored resources of which manifests define objects. Its pods are those that
// represent rejected manifests; mirror pods have no mark, and belong to the status manager.
var definable = []string{
	"pods", "configmaps", "secrets", "persistentvolumeclaims", "persistentvolumes", "runtimeclasses.node.k8s.io", "csidrivers.storage.k8s.io",
}

// pass is one reconciliation of the store with the manifests.
type pass struct {
	Config
	defined Defined
	failed  map[store.Key]error
	retry   bool // a failure needs a retry without a change
}

// errWaits is an error that only a change of the object can resolve.
type errWaits struct{ error }

func (p *pass) run(ctx context.Context) {
	wanted := map[store.Key]bool{}
	ensured := map[string]error{}
	for _, namespace := range p.defined.Namespaces {
		p.ensureNamespace(ctx, ensured, namespace)
	}
	for _, o := range p.defined.Objects {
		kind := kinds.Of(o.Object)
		if kind == nil || !slices.Contains(definable, kind.Stored) {
			p.fail(store.Key{Resource: fmt.Sprintf("%T", o.Object), Namespace: o.GetNamespace(), Name: o.GetName()},
				errWaits{fmt.Errorf("%s: %T %s: manifests define no objects of this kind for the local API: only %s", o.Path, o.Object, nameOf(o), strings.Join(definable, ", "))})
			continue
		}
		key := store.Key{Resource: kind.Stored, Namespace: o.GetNamespace(), Name: o.GetName()}
		wanted[key] = true
		err := error(nil)
		if kind.Namespaced {
			err = p.ensureNamespace(ctx, ensured, o.GetNamespace())
		}
		if err == nil {
			err = p.ensure(ctx, key, o)
		}
		if err != nil {
			p.fail(key, p.explain(o, kind, err))
		}
	}
	if p.defined.Incomplete {
		return
	}
	for _, resource := range definable {
		p.removeOthers(ctx, resource, wanted)
	}
}

func (p *pass) fail(key store.Key, err error) {
	p.failed[key] = err
	p.retry = p.retry || !errors.As(err, new(errWaits))
}

func (p *pass) explain(o Object, kind *kinds.Kind, err error) error {
	return fmt.Errorf("%s: %s %s: %w", o.Path, kind.Kind, nameOf(o), err)
}

func nameOf(o kinds.Object) string { return strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/") }

// ensureNamespace creates a missing namespace, once per pass.
func (p *pass) ensureNamespace(ctx context.Context, ensured map[string]error, name string) error {
	if err, done := ensured[name]; done || name == "" {
		return err
	}
	key := store.Key{Resource: "namespaces", Name: name}
	ns, err := p.get(key)
	switch {
	case err != nil:
	case ns == nil:
		err = p.Writer.Create(ctx, &v1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelMetadataName: name}},
			Spec:       v1.NamespaceSpec{Finalizers: []v1.FinalizerName{v1.FinalizerKubernetes}},
			Status:     v1.NamespaceStatus{Phase: v1.NamespaceActive},
		})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case ns.GetDeletionTimestamp() != nil:
		err = errWaits{fmt.Errorf("it is being deleted: what manifests have in it is made when it is gone")}
	}
	if err != nil {
		err = fmt.Errorf("namespace %s: %w", name, err)
		p.fail(key, err)
	}
	ensured[name] = err
	return err
}

const maxTries = 5

// ensure creates or updates the object of a manifest.
func (p *pass) ensure(ctx context.Context, key store.Key, o Object) (err error) {
	for range maxTries {
		var stored kinds.Object
		if stored, err = p.get(key); err != nil {
			return err
		}
		if stored == nil {
			err = p.Writer.Create(ctx, merge(o, nil))
		} else {
			if err := reject(o, stored); err != nil {
				return errWaits{err}
			}
			want := merge(o, stored)
			if equality.Semantic.DeepEqual(want, stored) {
				return nil
			}
			err = p.Writer.Update(ctx, want)
		}
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return err
}

// reject returns why a stored object cannot be changed to that of the manifest.
func reject(o Object, stored kinds.Object) error {
	kind := kinds.Of(stored)
	remove := fmt.Sprintf("delete it (kubectl delete %s %s", kind.Plural, stored.GetName())
	if kind.Namespaced {
		remove += " -n " + stored.GetNamespace()
	}
	remove += ")"
	switch {
	case !marked(stored) && !isDefault(stored):
		return fmt.Errorf("it exists already, and was not created from a manifest: %s, or rename the object in the file", remove)
	case stored.GetDeletionTimestamp() != nil:
		return errors.New("it is being deleted: it is made again when it is gone")
	case changesImmutable(o.Object, stored):
		return fmt.Errorf("it is immutable: %s, or give the new values another name", remove)
	}
	return nil
}

// removeOthers deletes the marked objects of a resource that are not wanted.
func (p *pass) removeOthers(ctx context.Context, resource string, wanted map[store.Key]bool) {
	var others []kinds.Object
	var failed error
	_, err := p.Store.List(store.Range{Resource: resource}, func(item store.Item) bool {
		if wanted[item.Key] {
			return true
		}
		o, err := kinds.Decode(item.Value, item.Revision)
		if err != nil {
			failed = fmt.Errorf("%s: %w", item.Key, err)
			return true // ignore an object that cannot be decoded
		}
		if marked(o) && o.GetDeletionTimestamp() == nil {
			others = append(others, o)
		}
		return true
	})
	if err := errors.Join(err, failed); err != nil {
		p.fail(store.Key{Resource: resource}, err)
	}
	for _, o := range others {
		p.Log.Info("object goes with its manifest", "kind", kinds.Of(o).Kind, "object", nameOf(o), "manifest", o.GetAnnotations()[mark])
		if err := p.remove(ctx, o); err != nil {
			p.fail(store.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()},
				fmt.Errorf("%s: %s %s: its manifest is gone, and it cannot be deleted: %w", o.GetAnnotations()[mark], kinds.Of(o).Kind, nameOf(o), err))
		}
	}
}

// remove deletes an object whose manifest was deleted.
func (p *pass) remove(ctx context.Context, o kinds.Object) (err error) {
	key := store.Key{Resource: kinds.Of(o).Stored, Namespace: o.GetNamespace(), Name: o.GetName()}
	for range maxTries {
		if err = p.Writer.Delete(ctx, o); !apierrors.IsConflict(err) {
			break
		}
		var failed error
		if o, failed = p.get(key); failed != nil {
			return failed
		}
		if o == nil || !marked(o) || o.GetDeletionTimestamp() != nil {
			return nil // it was deleted or changed concurrently
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// get reads an object; nil if it does not exist.
func (p *pass) get(key store.Key) (kinds.Object, error) {
	item, err := p.Store.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return kinds.Decode(item.Value, item.Revision)
}
