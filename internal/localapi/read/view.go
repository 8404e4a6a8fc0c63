package read

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
)

// view is what an answer shows of objects.
type view interface {
	described
	looks
}

type described interface {
	// check is why the request cannot be shown so.
	check(*request, amount) error
	// kinds are those of what is shown of one object, and of a list.
	kinds(*kinds.Kind) shownKinds
}

type looks interface {
	// alone is what JSON shows of an object by itself, and item what it shows in a list.
	alone(object) (any, error)
	item(object) (any, error)
	// message is what protobuf shows in both.
	message(object) ([]byte, error)
}

// amount is how much a request asks for.
type amount int

const (
	single amount = iota
	list
	watched
)

type shownKinds struct{ one, list schema.GroupVersionKind }

// whole shows objects as they are.
type whole struct{}

func (whole) check(*request, amount) error { return nil }

func (whole) kinds(k *kinds.Kind) shownKinds {
	return shownKinds{k.GroupVersionKind, k.GroupVersion().WithKind(k.Kind + "List")}
}

func (whole) item(o object) (any, error) { return o.decode() }

func (whole) alone(o object) (any, error) { return named(o) }

func (whole) message(o object) ([]byte, error) { return o.message() }

// named is an object that says its kind.
func named(o object) (kinds.Object, error) {
	s, err := o.decode()
	if err == nil {
		s.GetObjectKind().SetGroupVersionKind(o.kind.GroupVersionKind)
	}
	return s, err
}

// partial shows metadata alone.
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

// internalType is what kube-apiserver calls the type of a kind in itself.
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
