package localapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/store"
	"berth/internal/localapi/trusted"
)

// objects looks up objects in the store.
type objects struct{ store *store.Store }

// Get returns an object, or a NotFound error.
func (o objects) Get(_ context.Context, k *kinds.Kind, namespace, name string) (kinds.Object, error) {
	item, err := o.store.Get(store.Key{Resource: k.Stored, Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return nil, apierrors.NewNotFound(k.Resource(), name)
	}
	if err != nil {
		return nil, err
	}
	return kinds.Decode(item.Value, item.Revision)
}

// initialObject is an initial object, with the resource under which it is stored.
type initialObject struct {
	resource string
	kinds.Object
}

// initialObjects returns the objects that every cluster has initially.
func initialObjects() []initialObject {
	var out []initialObject
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, v1.NamespaceNodeLease} {
		out = append(out, initialObject{"namespaces", trusted.NewNamespace(name)})
	}
	lower := v1.PreemptLowerPriority
	for _, c := range []struct {
		name  string
		value int32
		what  string
	}{
		{"system-node-critical", 2000001000, "Used for system critical pods that must not be moved from their current node."},
		{"system-cluster-critical", 2000000000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."},
	} {
		out = append(out, initialObject{"priorityclasses.scheduling.k8s.io", &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: c.name, Generation: 1}, Value: c.value, Description: c.what, PreemptionPolicy: &lower,
		}})
	}
	return out
}

// runtimeClasses returns the RuntimeClasses of the runtime's handlers, by name. A manifest may
// replace them.
func runtimeClasses(handlers []string) []initialObject {
	var out []initialObject
	for _, name := range handlers {
		out = append(out, initialObject{"runtimeclasses.node.k8s.io", &nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{manifests.DefaultAnnotation: "true"}}, Handler: name,
		}})
	}
	return out
}

// defaultsOf returns the objects that every namespace has, given the CA certificate, "" if there is
// none.
func defaultsOf(authority string) func(namespace string) []kinds.Object {
	return func(namespace string) []kinds.Object {
		account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
		if authority == "" {
			return []kinds.Object{account}
		}
		return []kinds.Object{
			account,
			&v1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: namespace, Name: "kube-root-ca.crt",
					Annotations: map[string]string{"kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."},
				},
				Data: map[string]string{"ca.crt": authority},
			},
		}
	}
}

// createInitial creates those of the initial objects that do not exist.
func createInitial(s *store.Store, objects []initialObject) error {
	for _, o := range objects {
		key := store.Key{Resource: o.resource, Name: o.GetName()}
		if _, err := s.Get(key); err == nil {
			continue
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		o.SetUID(uuid.NewUUID())
		o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
		value, err := kinds.Encode(o.Object)
		if err != nil {
			return err
		}
		if _, err := s.Write(key, 0, value); err != nil {
			return fmt.Errorf("create %s: %w", key, err)
		}
	}
	return nil
}
