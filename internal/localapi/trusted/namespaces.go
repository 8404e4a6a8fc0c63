package trusted

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// ensureNamespace creates the namespace of the request if it does not exist, as pods of manifests
// may be in any. In a terminating namespace it fails.
func (x *call) ensureNamespace() error {
	if !x.kind.Namespaced {
		return nil
	}
	key := store.Key{Resource: "namespaces", Name: x.Namespace}
	item, err := x.cfg.Store.Get(key)
	if err == nil {
		return x.checkNamespace(item)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	value, err := kinds.Encode(NewNamespace(x.Namespace))
	if err != nil {
		return err
	}
	_, err = x.cfg.Store.Write(key, 0, value)
	if errors.Is(err, store.ErrConflict) { // created concurrently
		return nil
	}
	return err
}

// checkNamespace rejects creation in a terminating namespace, with the API server's message.
func (x *call) checkNamespace(item store.Item) error {
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil || o.GetDeletionTimestamp() == nil {
		return err
	}
	refused := apierrors.NewForbidden(x.kind.Resource(), x.Name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", x.Namespace))
	refused.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: v1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", x.Namespace), Field: "metadata.namespace",
	}}
	return refused
}

// NewNamespace returns a namespace as the API server creates it.
func NewNamespace(name string) *v1.Namespace {
	return &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uuid.NewUUID(), CreationTimestamp: now(), Labels: map[string]string{v1.LabelMetadataName: name},
		},
		Spec:   v1.NamespaceSpec{Finalizers: []v1.FinalizerName{v1.FinalizerKubernetes}},
		Status: v1.NamespaceStatus{Phase: v1.NamespaceActive},
	}
}
