//go:build apiserver

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
)

// headers identify the client.
var headers = struct{ user, uid, group []string }{[]string{apiserver.UserHeader}, []string{apiserver.UIDHeader}, []string{apiserver.GroupHeader}}

// newAPI creates the API. The informers are those of its admission plugins; they call the API
// itself through own.
func newAPI(ctx context.Context, client *apiserver.Client, node string, own *pipes) (http.Handler, informers.SharedInformerFactory, error) {
	// Privileged pods are allowed, as for manifests of this machine and in kubeadm clusters.
	capabilities.Setup(true, 0)
	self := &clientrest.Config{
		Host: "http://self", Dial: own.dial, QPS: -1,
		ContentConfig: clientrest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return transport.NewAuthProxyRoundTripper(user.APIServerUser, "", []string{user.SystemPrivilegedGroup}, nil, next)
		},
	}
	clients, err := kubernetes.NewForConfig(self)
	if err != nil {
		return nil, nil, err
	}
	shared := informers.NewSharedInformerFactory(clients, 0)
	chain, err := newAdmission(ctx, node, clients, shared)
	if err != nil {
		return nil, nil, fmt.Errorf("admission: %w", err)
	}
	storages := storages{client: client}
	config, err := newConfig(self, storages, chain)
	if err != nil {
		return nil, nil, err
	}
	server, err := config.Complete(nil).New("berth", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, nil, err
	}
	if err := install(server, storages, node); err != nil {
		return nil, nil, err
	}
	return withDocuments(server), shared, nil
}

func newConfig(self *clientrest.Config, storages storages, chain admission.Interface) (*genericapiserver.Config, error) {
	config := genericapiserver.NewConfig(legacyscheme.Codecs)
	config.ExternalAddress = "localhost:443"
	config.LoopbackClientConfig = self
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.RESTOptionsGetter = storages
	config.AdmissionControl = chain
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.EnableProfiling, config.EnableMetrics = false, false
	// No post-start hooks run: the program serves by itself.
	config.StorageObjectCountTracker = nil
	config.DisabledPostStartHooks.Insert("max-in-flight-filter")
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "Kubernetes", "Kubernetes"
	authenticator, err := headerrequest.New(headers.user, headers.uid, headers.group, nil)
	if err != nil {
		return nil, err
	}
	config.Authentication.Authenticator = authenticator
	config.BuildHandlerChainFunc = handlers
	return config, nil
}

// handlers returns the handler chain: kube-apiserver's without authorization, audit, impersonation,
// tracing and priorities, which the agent implements or omits.
func handlers(api http.Handler, c *genericapiserver.Config) http.Handler {
	h := genericfilters.WithMaxInFlightLimit(api, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	h = filters.WithAuthentication(h, c.Authentication.Authenticator, filters.Unauthorized(c.Serializer), nil, nil)
	h = filters.WithWarningRecorder(h)
	h = genericfilters.WithTimeoutForNonLongRunningRequests(h, c.LongRunningFunc)
	h = filters.WithRequestDeadline(h, nil, nil, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = filters.WithCacheControl(h)
	h = filters.WithRequestInfo(h, c.RequestInfoResolver)
	h = filters.WithRequestReceivedTimestamp(h)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	return filters.WithAuditInit(h)
}

// withDocuments creates OpenAPI and what else writes do not need at the first request for it,
// because that takes longer than the rest of the start.
func withDocuments(server *genericapiserver.GenericAPIServer) http.Handler {
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch root, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); root {
		case "api", "apis", "version":
		default:
			once.Do(func() { server.PrepareRun() })
		}
		server.Handler.ServeHTTP(w, r)
	})
}

// install installs the kinds.
func install(server *genericapiserver.GenericAPIServer, storages storages, node string) error {
	core, err := storages.core()
	if err != nil {
		return err
	}
	groups, err := storages.groups()
	if err != nil {
		return err
	}
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, groupInfo("", core)); err != nil {
		return err
	}
	var infos []*genericapiserver.APIGroupInfo
	for _, g := range groups {
		infos = append(infos, groupInfo(g.name, g.resources))
	}
	if err := server.InstallAPIGroups(infos...); err != nil {
		return err
	}
	announceVirtuals(server)
	return nil
}

// announceVirtuals adds the groups that the agent serves itself to discovery.
func announceVirtuals(server *genericapiserver.GenericAPIServer) {
	for _, v := range kinds.Virtuals {
		group, version := v.Describe(), v.Discovery()
		server.DiscoveryGroupManager.AddGroup(*group)
		server.AggregatedDiscoveryGroupManager.AddGroupVersion(group.Name, version)
		// After all others, as in a metrics server's APIService.
		server.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion{Group: group.Name, Version: version.Version}, 100, 100)
	}
}

func groupInfo(group string, resources map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(group, legacyscheme.Scheme, legacyscheme.ParameterCodec, codecs())
	info.PrioritizedVersions = []schema.GroupVersion{{Group: group, Version: "v1"}}
	info.VersionedResourcesStorageMap["v1"] = resources
	return &info
}

// codecs returns the codecs of kube-apiserver with its default features.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	var opts []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToJSON())
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToProtobuf) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToProtobuf())
	}
	return serializer.NewCodecFactory(legacyscheme.Scheme, opts...)
})
