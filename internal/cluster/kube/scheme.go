package kube

import (
	"fmt"
	"reflect"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// groupVersions are the API groups that a node uses. Each costs memory on every node.
var groupVersions = []struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
}{
	{v1.SchemeGroupVersion, v1.AddToScheme},
	{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme},
	{certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme},
	{certificatesv1beta1.SchemeGroupVersion, certificatesv1beta1.AddToScheme},
	{authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme},
	{authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme},
	{nodev1.SchemeGroupVersion, nodev1.AddToScheme},
	{storagev1.SchemeGroupVersion, storagev1.AddToScheme},
	{resourcev1.SchemeGroupVersion, resourcev1.AddToScheme},
}

// Scheme returns the types of all API groups that a node uses. It is created by the first call;
// callers must not change it.
var Scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"}) // Status and the options of calls, in every group
	for _, g := range groupVersions {
		if err := g.add(s); err != nil {
			panic(fmt.Sprintf("register the types of %s: %v", g.version, err)) // a type registered twice: independent of input
		}
	}
	return s
})

// Codecs returns the serializers of Scheme: JSON, YAML, protobuf and CBOR.
var Codecs = sync.OnceValue(func() serializer.CodecFactory { return serializer.NewCodecFactory(Scheme()) })

// parameterCodec encodes the options of calls as query parameters.
var parameterCodec = sync.OnceValue(func() runtime.ParameterCodec { return runtime.NewParameterCodec(Scheme()) })

type object interface {
	runtime.Object
	metav1.Object
}

// Watchable are the kinds that can be watched.
type Watchable interface {
	*v1.Pod | *v1.Node | *v1.ConfigMap | *v1.Secret | *v1.Service | *v1.PersistentVolumeClaim | *certificatesv1.CertificateSigningRequest | *nodev1.RuntimeClass |
		*certificatesv1beta1.ClusterTrustBundle | *certificatesv1beta1.PodCertificateRequest | *storagev1.CSIDriver
	object
}

// resource is the REST mapping of a kind.
type resource struct {
	version    schema.GroupVersion
	plural     string // in paths
	singular   string // in errors
	namespaced bool
}

// resources maps object types, without the pointer, to their resources.
var resources = map[reflect.Type]resource{
	reflect.TypeFor[v1.Pod]():                                    {v1.SchemeGroupVersion, "pods", "pod", true},
	reflect.TypeFor[v1.Node]():                                   {v1.SchemeGroupVersion, "nodes", "node", false},
	reflect.TypeFor[v1.ConfigMap]():                              {v1.SchemeGroupVersion, "configmaps", "configmap", true},
	reflect.TypeFor[v1.Secret]():                                 {v1.SchemeGroupVersion, "secrets", "secret", true},
	reflect.TypeFor[v1.Service]():                                {v1.SchemeGroupVersion, "services", "service", true},
	reflect.TypeFor[v1.PersistentVolumeClaim]():                  {v1.SchemeGroupVersion, "persistentvolumeclaims", "persistentvolumeclaim", true},
	reflect.TypeFor[v1.PersistentVolume]():                       {v1.SchemeGroupVersion, "persistentvolumes", "persistentvolume", false},
	reflect.TypeFor[v1.ServiceAccount]():                         {v1.SchemeGroupVersion, "serviceaccounts", "service account", true},
	reflect.TypeFor[v1.Event]():                                  {v1.SchemeGroupVersion, "events", "event", true},
	reflect.TypeFor[coordinationv1.Lease]():                      {coordinationv1.SchemeGroupVersion, "leases", "lease", true},
	reflect.TypeFor[certificatesv1.CertificateSigningRequest]():  {certificatesv1.SchemeGroupVersion, "certificatesigningrequests", "certificate signing request", false},
	reflect.TypeFor[certificatesv1beta1.ClusterTrustBundle]():    {certificatesv1beta1.SchemeGroupVersion, "clustertrustbundles", "cluster trust bundle", false},
	reflect.TypeFor[certificatesv1beta1.PodCertificateRequest](): {certificatesv1beta1.SchemeGroupVersion, "podcertificaterequests", "pod certificate request", true},
	reflect.TypeFor[nodev1.RuntimeClass]():                       {nodev1.SchemeGroupVersion, "runtimeclasses", "runtime class", false},
	reflect.TypeFor[authenticationv1.TokenRequest]():             {v1.SchemeGroupVersion, "serviceaccounts", "token of service account", true},
	reflect.TypeFor[authenticationv1.TokenReview]():              {authenticationv1.SchemeGroupVersion, "tokenreviews", "token review", false},
	reflect.TypeFor[authorizationv1.SubjectAccessReview]():       {authorizationv1.SchemeGroupVersion, "subjectaccessreviews", "subject access review", false},
	reflect.TypeFor[storagev1.CSINode]():                         {storagev1.SchemeGroupVersion, "csinodes", "CSINode", false},
	reflect.TypeFor[storagev1.CSIDriver]():                       {storagev1.SchemeGroupVersion, "csidrivers", "CSIDriver", false},
	reflect.TypeFor[storagev1.VolumeAttachment]():                {storagev1.SchemeGroupVersion, "volumeattachments", "VolumeAttachment", false},
	reflect.TypeFor[resourcev1.ResourceClaim]():                  {resourcev1.SchemeGroupVersion, "resourceclaims", "ResourceClaim", true},
	reflect.TypeFor[resourcev1.ResourceSlice]():                  {resourcev1.SchemeGroupVersion, "resourceslices", "ResourceSlice", false},
}

// resourceOf returns the resource of type P, a pointer to one of the types of resources.
func resourceOf[P object]() resource {
	r, ok := resources[reflect.TypeFor[P]().Elem()]
	if !ok {
		panic(fmt.Sprintf("kube: no resource for %v: add it to resources", reflect.TypeFor[P]()))
	}
	return r
}

func newObject[P object]() P { return reflect.New(reflect.TypeFor[P]().Elem()).Interface().(P) }
