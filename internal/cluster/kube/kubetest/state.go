package kubetest

import (
	"encoding/json"
	"fmt"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Object is a pointer to an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// kindOf returns the kind of objects of type P.
func kindOf[P Object]() *kind {
	for i := range kinds {
		if reflect.TypeOf(kinds[i].new()) == reflect.TypeFor[P]() {
			return &kinds[i]
		}
	}
	panic(fmt.Sprintf("kubetest: objects of type %v are not kept", reflect.TypeFor[P]()))
}

// Put creates or replaces an object including its status, without validation: tests use it to
// prepare state. Missing server defaults are set. It returns the object as stored.
func Put[P Object](s *Server, o P) P {
	k := kindOf[P]()
	s.mu.Lock()
	defer s.mu.Unlock()
	t, key := s.tables[k], types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	stored := o.DeepCopyObject().(object)
	if old, exists := t.objects[key]; exists {
		stored.SetUID(old.GetUID())
		stored.SetCreationTimestamp(old.GetCreationTimestamp())
		stored.SetGeneration(old.GetGeneration())
		if k.generation && !apiequality.Semantic.DeepEqual(specOf(stored), specOf(old)) {
			stored.SetGeneration(old.GetGeneration() + 1)
		}
	} else {
		if stored.GetUID() == "" {
			stored.SetUID(newUID())
		}
		if at := stored.GetCreationTimestamp(); at.IsZero() {
			stored.SetCreationTimestamp(now())
		}
		if k.generation && stored.GetGeneration() == 0 {
			stored.SetGeneration(1)
		}
		prepareKeepingStatus(k, stored)
	}
	return s.write(t, key, stored, false).DeepCopyObject().(P)
}

// prepareKeepingStatus sets defaults, but retains an existing status.
func prepareKeepingStatus(k *kind, o object) {
	if k.prepare == nil {
		return
	}
	before := reflect.ValueOf(o.DeepCopyObject()).Elem().FieldByName("Status")
	k.prepare(o)
	if before.IsValid() && !before.IsZero() {
		reflect.ValueOf(o).Elem().FieldByName("Status").Set(before)
	}
}

// Get returns a copy of an object. namespace is "" for cluster-scoped kinds.
func Get[P Object](s *Server, namespace, name string) (P, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.tables[kindOf[P]()].objects[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		var none P
		return none, false
	}
	return o.DeepCopyObject().(P), true
}

// List returns copies of all objects of a kind, sorted by namespace and name.
func List[P Object](s *Server) []P {
	k := kindOf[P]()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []P
	for _, o := range s.tables[k].selected(selection{labels: labels.Everything(), fields: fields.Everything(), fieldsOf: k.fields}) {
		out = append(out, o.DeepCopyObject().(P))
	}
	return out
}

// Delete deletes an object as a user does: a pod that is bound to a node begins to terminate, with
// the grace period of the options or its spec. It returns false if there is no such object, or the
// preconditions fail.
func Delete[P Object](s *Server, namespace, name string, options metav1.DeleteOptions) bool {
	e := &exchange{server: s, kind: kindOf[P](), request: &Request{Namespace: namespace, Name: name}}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := e.find()
	if err == nil {
		_, err = e.remove(old, &options)
	}
	return err == nil
}

// Remove deletes an object without grace period and finalizers. It returns false if there is none.
func Remove[P Object](s *Server, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, key := s.tables[kindOf[P]()], types.NamespacedName{Namespace: namespace, Name: name}
	old, ok := t.objects[key]
	if ok {
		s.write(t, key, old.DeepCopyObject().(object), true)
	}
	return ok
}

func decodeJSON(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}
