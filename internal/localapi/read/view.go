package read

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
)

// view is the representation of objects in a response.
type view interface {
	described
	looks
}

type described interface {
	// check returns why the request does not support the view.
	check(*request, amount) error
	// kinds returns the kinds of one object and of a list in the view.
	kinds(*kinds.Kind) shownKinds
}

type looks interface {
	// alone returns the JSON value of a single object, and item that of an object in a list.
	alone(object) (any, error)
	item(object) (any, error)
	// message returns the protobuf message for both.
	message(object) ([]byte, error)
}

// amount is the type of a request.
type amount int

const (
	single amount = iota
	list
	watched
)

type shownKinds struct{ one, list schema.GroupVersionKind }

// whole is the view of whole objects.
type whole struct{}

func (whole) check(*request, amount) error { return nil }

func (whole) kinds(k *kinds.Kind) shownKinds {
	return shownKinds{k.GroupVersionKind, k.GroupVersion().WithKind(k.Kind + "List")}
}

func (whole) item(o object) (any, error) { return o.decode() }

func (whole) alone(o object) (any, error) { return named(o) }

func (whole) message(o object) ([]byte, error) { return o.message() }

// named decodes an object with TypeMeta.
func named(o object) (kinds.Object, error) {
	s, err := o.decode()
	if err == nil {
		s.GetObjectKind().SetGroupVersionKind(o.kind.GroupVersionKind)
	}
	return s, err
}

// partial is the view of metadata only.
type partial struct{ asList bool }

func (p partial) check(q *request, n amount) error {
	switch {
	case n == list && !p.asList:
		return refused(fmt.Sprintf("you requested %s, but the requested object is a list (%sList)", partialObject, internalType(q.kind)))
	case n == single && p.asList:
		return refused(fmt.Sprintf("you requested %s, but the requested object is not a list (%s)", partialList, internalType(q.kind)))
	case n == watched && p.asList:
		return refused(fmt.Sprintf("you requested %s, but a watch shows single objects: request %s", partialList, partialObject))
	}
	return nil
}

// internalType returns the name of kube-apiserver's internal type of a kind.
func internalType(k *kinds.Kind) string {
	group, _, _ := strings.Cut(k.Group, ".")
	if k.Stored == "events" || group == "" {
		group = "core"
	}
	return "*" + group + "." + k.Kind
}

func (partial) kinds(*kinds.Kind) shownKinds {
	return shownKinds{metav1.SchemeGroupVersion.WithKind(partialObject), metav1.SchemeGroupVersion.WithKind(partialList)}
}

func (p partial) item(o object) (any, error) { return p.alone(o) }

func (partial) alone(o object) (any, error) {
	m, err := o.objectMeta()
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: partialObject, APIVersion: metav1.SchemeGroupVersion.String()},
		ObjectMeta: m,
	}, err
}

func (partial) message(o object) ([]byte, error) {
	m, _, err := o.metadata()
	return replaced(nil, span{}, objectMetadata, m), err
}
