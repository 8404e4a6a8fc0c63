package kinds

import (
	"slices"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Object is implemented by all API objects.
type Object interface {
	runtime.Object
	metav1.Object
}

// Kind is one kind of objects in one API version.
type Kind struct {
	schema.GroupVersionKind
	Plural     string // in paths
	Namespaced bool
	// Stored is the resource under which the store has the objects. Events of both groups are the
	// same objects.
	Stored string
	// Subresources are sorted.
	Subresources []string
	// New returns an empty object.
	New func() Object
	// NewStored returns an empty object of the stored type: events of both groups are stored as
	// core/v1.
	NewStored func() Object
	// Values returns the values for field selectors, other than name and namespace; nil if there
	// are none. Field maps labels of requests to its keys.
	Values func(stored Object) map[string]string

	fields map[string]string // by label in requests; nil: only metadata
}

// Resource returns the group and plural, as in errors.
func (k *Kind) Resource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Plural}
}

func kind[T any, P interface {
	*T
	Object
}](version schema.GroupVersion, name, plural string, subresources ...string,
) Kind {
	k := Kind{
		GroupVersionKind: version.WithKind(name), Plural: plural, Namespaced: true,
		Subresources: subresources, New: func() Object { return P(new(T)) },
	}
	k.Stored, k.NewStored = k.Resource().String(), k.New
	return k
}

// global makes a kind cluster-scoped.
func global(k Kind) Kind {
	k.Namespaced = false
	return k
}

// All are the kinds of the local API (ADR 12).
var All = func() []Kind {
	stored := selectable(kind[v1.Event](v1.SchemeGroupVersion, "Event", "events"), eventFields, eventValues)
	event := selectable(kind[eventsv1.Event](eventsv1.SchemeGroupVersion, "Event", "events"), newEventFields, eventValues)
	event.Stored, event.NewStored = stored.Stored, stored.New
	nodeFields, namespaceFields := same(NameField, "spec.unschedulable"), same(NameField, "status.phase")
	return []Kind{
		selectable(kind[v1.Pod](v1.SchemeGroupVersion, "Pod", "pods", "attach", "binding", "ephemeralcontainers", "eviction", "exec",
			"log", "portforward", "resize", "status"), podFields, podValues),
		kind[v1.ConfigMap](v1.SchemeGroupVersion, "ConfigMap", "configmaps"),
		selectable(kind[v1.Secret](v1.SchemeGroupVersion, "Secret", "secrets"), same(NameField, NamespaceField, "type"), secretValues),
		kind[v1.PersistentVolumeClaim](v1.SchemeGroupVersion, "PersistentVolumeClaim", "persistentvolumeclaims", "status"),
		kind[v1.ServiceAccount](v1.SchemeGroupVersion, "ServiceAccount", "serviceaccounts", "token"),
		stored,
		global(kind[v1.PersistentVolume](v1.SchemeGroupVersion, "PersistentVolume", "persistentvolumes", "status")),
		selectable(global(kind[v1.Namespace](v1.SchemeGroupVersion, "Namespace", "namespaces", "finalize", "status")), namespaceFields, namespaceValues),
		selectable(global(kind[v1.Node](v1.SchemeGroupVersion, "Node", "nodes", "proxy", "status")), nodeFields, nodeValues),
		kind[coordinationv1.Lease](coordinationv1.SchemeGroupVersion, "Lease", "leases"),
		event,
		global(kind[nodev1.RuntimeClass](nodev1.SchemeGroupVersion, "RuntimeClass", "runtimeclasses")),
		global(kind[schedulingv1.PriorityClass](schedulingv1.SchemeGroupVersion, "PriorityClass", "priorityclasses")),
		global(kind[storagev1.StorageClass](storagev1.SchemeGroupVersion, "StorageClass", "storageclasses")),
		global(kind[storagev1.CSIDriver](storagev1.SchemeGroupVersion, "CSIDriver", "csidrivers")),
		global(kind[storagev1.CSINode](storagev1.SchemeGroupVersion, "CSINode", "csinodes")),
	}
}()

// Find returns the kind of a group, version and plural; nil if the local API does not have it.
func Find(group, version, plural string) *Kind {
	i := slices.IndexFunc(All, func(k Kind) bool { return k.Group == group && k.Version == version && k.Plural == plural })
	if i < 0 {
		return nil
	}
	return &All[i]
}

// Of returns the kind of an object by its Go type; nil if the local API does not have it.
func Of(o Object) *Kind {
	gvks, _, err := Scheme().ObjectKinds(o)
	if err != nil {
		return nil // the type is not in the scheme
	}
	i := slices.IndexFunc(All, func(k Kind) bool { return slices.Contains(gvks, k.GroupVersionKind) })
	if i < 0 {
		return nil
	}
	return &All[i]
}

// Scheme returns the scheme of all kinds, subresources and reviews. It is created by the first call
// and must not be modified.
var Scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"}) // Status and the options of calls, in every group
	for _, add := range []func(*runtime.Scheme) error{
		v1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme, nodev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
		policyv1.AddToScheme, metricsv1beta1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(s); err != nil {
			panic("register the types of the local API: " + err.Error()) // a type registered twice: cannot depend on input
		}
	}
	return s
})

// Codecs returns the serializers of Scheme: JSON, YAML and protobuf.
var Codecs = sync.OnceValue(func() serializer.CodecFactory { return serializer.NewCodecFactory(Scheme()) })
