//go:build apiserver

package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install" // reviews, TokenRequest
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"  // reviews
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install" // Eviction
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"
	leasestorage "k8s.io/kubernetes/pkg/registry/coordination/lease/storage"
	configmapstorage "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	eventstorage "k8s.io/kubernetes/pkg/registry/core/event/storage"
	namespacestorage "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
	nodestorage "k8s.io/kubernetes/pkg/registry/core/node/storage"
	volumestorage "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	claimstorage "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstorage "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	secretstorage "k8s.io/kubernetes/pkg/registry/core/secret/storage"
	accountstorage "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	runtimeclassstorage "k8s.io/kubernetes/pkg/registry/node/runtimeclass/storage"
	priorityclassstorage "k8s.io/kubernetes/pkg/registry/scheduling/priorityclass/storage"
	csidriverstorage "k8s.io/kubernetes/pkg/registry/storage/csidriver/storage"
	csinodestorage "k8s.io/kubernetes/pkg/registry/storage/csinode/storage"
	storageclassstorage "k8s.io/kubernetes/pkg/registry/storage/storageclass/storage"

	"berth/bundle/apiserver/storage"
	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
)

// storages creates the registries of the kinds on top of the agent's store.
type storages struct{ client *apiserver.Client }

// GetRESTOptions returns the storage options of a registry.
func (s storages) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	kind := kinds.Find(resource.Group, "v1", resource.Resource)
	if kind == nil {
		return generic.RESTOptions{}, fmt.Errorf("the local API has no %s", resource)
	}
	protobuf, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return generic.RESTOptions{}, fmt.Errorf("%s: no serializer for %s", resource, runtime.ContentTypeProtobuf)
	}
	codec := legacyscheme.Codecs.CodecForVersions(protobuf.Serializer, legacyscheme.Codecs.UniversalDeserializer(),
		kind.GroupVersion(), schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal})
	return generic.RESTOptions{
		StorageConfig:           &storagebackend.ConfigForResource{Config: storagebackend.Config{Codec: codec}, GroupResource: resource},
		Decorator:               storage.Decorator(s.client, kind),
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          kind.Stored,
	}, nil
}

// group is the kinds of one API group other than core.
type group struct {
	name      string
	resources map[string]rest.Storage
}

// made collects the first error of constructors.
func made[T any](registry T, err error) func(*error) T {
	return func(first *error) T {
		if *first == nil {
			*first = err
		}
		return registry
	}
}

// groups creates the registries of all groups but the core.
func (s storages) groups() (all []group, err error) {
	leases := made(leasestorage.NewREST(s))(&err)
	events := made(eventstorage.NewREST(s, eventSeconds))(&err)
	runtimeClasses := made(runtimeclassstorage.NewREST(s))(&err)
	priorityClasses := made(priorityclassstorage.NewREST(s))(&err)
	storageClasses := made(storageclassstorage.NewREST(s))(&err)
	drivers := made(csidriverstorage.NewStorage(s))(&err)
	nodes := made(csinodestorage.NewStorage(s))(&err)
	if err != nil {
		return nil, err
	}
	return []group{
		{"authentication.k8s.io", map[string]rest.Storage{
			"selfsubjectreviews": noReviews{selfsubjectreview.NewREST()},
			"tokenreviews":       noReviews{tokenreview.NewREST(nil, nil)},
		}},
		{"authorization.k8s.io", map[string]rest.Storage{
			"localsubjectaccessreviews": noReviews{localsubjectaccessreview.NewREST(nil)},
			"selfsubjectaccessreviews":  noReviews{selfsubjectaccessreview.NewREST(nil)},
			"selfsubjectrulesreviews":   noReviews{selfsubjectrulesreview.NewREST(nil)},
			"subjectaccessreviews":      noReviews{subjectaccessreview.NewREST(nil)},
		}},
		{"coordination.k8s.io", map[string]rest.Storage{"leases": leases}},
		{"events.k8s.io", map[string]rest.Storage{"events": events}},
		{"node.k8s.io", map[string]rest.Storage{"runtimeclasses": runtimeClasses}},
		{"scheduling.k8s.io", map[string]rest.Storage{"priorityclasses": priorityClasses}},
		{"storage.k8s.io", map[string]rest.Storage{"storageclasses": storageClasses, "csidrivers": drivers.CSIDriver, "csinodes": nodes.CSINode}},
	}, nil
}

// eventSeconds is the TTL of an event in seconds. The registries require it; the agent deletes
// events.
const eventSeconds = 3600

// core creates the registries of the core group.
func (s storages) core() (all map[string]rest.Storage, err error) {
	configMaps := made(configmapstorage.NewREST(s))(&err)
	secrets := made(secretstorage.NewREST(s))(&err)
	events := made(eventstorage.NewREST(s, eventSeconds))(&err)
	if err != nil {
		return nil, err
	}
	namespaces, namespaceStatus, namespaceFinalize, err := namespacestorage.NewREST(s)
	if err != nil {
		return nil, err
	}
	volumes, volumeStatus, err := volumestorage.NewREST(s)
	if err != nil {
		return nil, err
	}
	claims, claimStatus, err := claimstorage.NewREST(s)
	if err != nil {
		return nil, err
	}
	all = map[string]rest.Storage{
		"configmaps": configMaps, "secrets": secrets, "events": events,
		"namespaces": namespaces, "namespaces/status": namespaceStatus, "namespaces/finalize": namespaceFinalize,
		"persistentvolumes": volumes, "persistentvolumes/status": volumeStatus,
		"persistentvolumeclaims": claims, "persistentvolumeclaims/status": claimStatus,
	}
	return all, s.addPods(all)
}

// addPods adds pods, nodes and service accounts, which depend on each other. Subresources that the
// agent serves are included for the API documents, and return errAgent.
func (s storages) addPods(all map[string]rest.Storage) error {
	nodes, err := nodestorage.NewStorage(s, client.KubeletClientConfig{PreferredAddressTypes: []string{"InternalIP"}}, noTransport{})
	if err != nil {
		return err
	}
	pods, err := podstorage.NewStorage(s, noKubelet{}, noTransport{}, noBudgets{}, authorizerfactory.NewAlwaysAllowAuthorizer())
	if err != nil {
		return err
	}
	accounts, err := accountstorage.NewREST(s, neverCalled{}, nil, 0, pods.Pod.Store, all["secrets"].(rest.Getter), nodes.Node.Store, false, 0)
	if err != nil {
		return err
	}
	for resource, registry := range map[string]rest.Storage{
		"pods": pods.Pod, "pods/status": pods.Status, "pods/resize": pods.Resize, "pods/ephemeralcontainers": pods.EphemeralContainers,
		"pods/eviction": pods.Eviction, "pods/binding": pods.Binding,
		"pods/log": pods.Log, "pods/exec": pods.Exec, "pods/attach": pods.Attach, "pods/portforward": pods.PortForward,
		"nodes": nodes.Node, "nodes/status": nodes.Status, "nodes/proxy": &noNodeProxy{nodes.Proxy},
		"serviceaccounts": accounts, "serviceaccounts/token": &noTokens{accounts.Token},
	} {
		all[resource] = registry
	}
	return nil
}
