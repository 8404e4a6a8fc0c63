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

// answers are the serializers of one kind of objects. They take an answer of the server only for
// what was asked for: an answer that says its kind and version, and at which resourceVersion it was
// true. Without that, a list of something else, or an empty object, would be an empty list, and end
// every pod of the node. It holds for answers to calls, lists and the events of watches alike.
// Differs from the kubelet: its client takes another kind, or none, for an empty object of the kind
// that it asked for.
type answers struct {
	runtime.NegotiatedSerializer
	object reflect.Type // what the events of watches are about: a pointer
}

// DecoderToVersion returns a decoder of answers.
func (a answers) DecoderToVersion(d runtime.Decoder, v runtime.GroupVersioner) runtime.Decoder {
	return answer{a.NegotiatedSerializer.DecoderToVersion(d, v), a.object}
}

// SupportedMediaTypes returns the wire formats.
func (a answers) SupportedMediaTypes() []runtime.SerializerInfo { return boundedMediaTypes() }

type answer struct {
	runtime.Decoder
	object reflect.Type
}

var errNoKind = errors.New("the server answered with something that has no kind or no apiVersion")

// Decode reads an answer into an object of the kind that is expected. With nil, it is the object of
// an event, or what an error came with; into a runtime.Unknown, it is the answer to a deletion,
// which is the object or a Status and of which nothing is kept. A Status of a failure is returned
// as it is: the client makes an error of it.
func (a answer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, kind, err := a.Decoder.Decode(data, defaults, nil) // given an object, it would add the kind that is missing
	if runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) {
		return nil, kind, errNoKind // the library's error holds all of the answer
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
	if isKept(o) && versionOf(o) == "" {
		return nil, kind, fmt.Errorf("the server answered with a %s without metadata.resourceVersion", want.Elem().Name())
	}
	if into != nil && !deletion {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o).Elem())
		o = into
	}
	return o, kind, nil
}

// isKept reports whether the server keeps such objects, and not only answers with them.
func isKept(o runtime.Object) bool {
	switch o.(type) {
	case *authenticationv1.TokenReview, *authenticationv1.TokenRequest, *authorizationv1.SubjectAccessReview:
		return false
	}
	return true
}

// versionOf returns the resourceVersion of an object or a list.
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

// checkName returns an error if an object has another name than the one that a call was about.
func checkName(o op, r resource, into runtime.Object) error {
	got, ok := into.(metav1.Object)
	if !ok || !isKept(into) || o.name == "" || got.GetName() == o.name && got.GetNamespace() == o.namespace {
		return nil
	}
	return fmt.Errorf("the server answered with %s", op{namespace: got.GetNamespace(), name: got.GetName()}.named(r.singular))
}
