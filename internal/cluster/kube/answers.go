package kube

import (
	"errors"
	"fmt"
	"reflect"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// answers are the serializers of one kind. They accept an answer only for the requested kind, with
// its kind and version and a resourceVersion. Otherwise a list of another kind, or an empty object,
// would be an empty list, and terminate every pod of the node. They decode the answers of calls,
// lists and watch events. Differs from the kubelet: its client accepts another kind, or none, as an
// empty object of the requested kind.
type answers struct {
	runtime.NegotiatedSerializer
	object reflect.Type // the type of objects in watch events: a pointer
}

// DecoderToVersion returns a decoder of answers.
func (a answers) DecoderToVersion(d runtime.Decoder, v runtime.GroupVersioner) runtime.Decoder {
	return answer{a.NegotiatedSerializer.DecoderToVersion(d, v), a.object}
}

// SupportedMediaTypes returns the wire formats, with bounded watch events.
func (a answers) SupportedMediaTypes() []runtime.SerializerInfo { return boundedMediaTypes() }

type answer struct {
	runtime.Decoder
	object reflect.Type
}

var errNoKind = errors.New("the server answered with something that has no kind or no apiVersion")

// Decode decodes an answer into an object of the expected kind. If into is nil, the answer is the
// object of an event or the body of an error; if it is a runtime.Unknown, the answer of a deletion,
// which is the object or a Status and is discarded. A failure Status is returned as it is: the
// client converts it to an error.
func (a answer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, kind, err := a.Decoder.Decode(data, defaults, nil) // given an object, it would add a missing kind
	if runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) {
		return nil, kind, errNoKind // the library's error contains the whole answer
	}
	if err != nil {
		return nil, kind, fmt.Errorf("the server's answer: %w", err)
	}
	want := a.object
	_, deletion := into.(*runtime.Unknown)
	if into != nil && !deletion {
		want = reflect.TypeOf(into)
	}
	if status, ok := o.(*metav1.Status); ok && (deletion || status.Status != metav1.StatusSuccess) {
		return o, kind, nil
	}
	if got := reflect.TypeOf(o); got != want {
		return nil, kind, fmt.Errorf("the server answered with a %s instead of a %s", got.Elem().Name(), want.Elem().Name())
	}
	if isStored(o) && versionOf(o) == "" {
		return nil, kind, fmt.Errorf("the server answered with a %s without metadata.resourceVersion", want.Elem().Name())
	}
	if into != nil && !deletion {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o).Elem())
		o = into
	}
	return o, kind, nil
}

// isStored reports whether the server stores such objects, rather than only returning them.
func isStored(o runtime.Object) bool {
	switch o.(type) {
	case *authenticationv1.TokenReview, *authenticationv1.TokenRequest, *authorizationv1.SubjectAccessReview:
		return false
	}
	return true
}

func versionOf(o runtime.Object) string {
	switch m := o.(type) {
	case metav1.ListInterface:
		return m.GetResourceVersion()
	case metav1.ListMetaAccessor:
		return m.GetListMeta().GetResourceVersion()
	case metav1.Object:
		return m.GetResourceVersion()
	}
	return ""
}

// checkName returns an error if the object's name differs from that of the call.
func checkName(o op, r resource, into runtime.Object) error {
	got, ok := into.(metav1.Object)
	if !ok || !isStored(into) || o.name == "" || got.GetName() == o.name && got.GetNamespace() == o.namespace {
		return nil
	}
	return fmt.Errorf("the server answered with %s", op{namespace: got.GetNamespace(), name: got.GetName()}.named(r.singular))
}
