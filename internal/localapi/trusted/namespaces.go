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

// needNamespace makes the namespace of the request if it is not there: pods of manifests are in
// any. In one that ends nothing is made.
func (x *call) needNamespace() error {
	if !x.kind.Namespaced {
		return nil
	}
	key := store.Key{Resource: "namespaces", Name: x.Namespace}
	item, err := x.Store.Get(key)
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
	_, err = x.Store.Write(key, 0, value)
	if errors.Is(err, store.ErrConflict) { // somebody else has made it
		return nil
	}
	return err
}

// checkNamespace refuses what is to be made in a namespace that ends, in the words of the API
// server.
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

// NewNamespace is a namespace as the API server makes one.
func NewNamespace(name string) *v1.Namespace {
	return &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uuid.NewUUID(), CreationTimestamp: now(), Labels: map[string]string{v1.LabelMetadataName: name},
		},
		Spec:   v1.NamespaceSpec{Finalizers: []v1.FinalizerName{v1.FinalizerKubernetes}},
		Status: v1.NamespaceStatus{Phase: v1.NamespaceActive},
	}
}
