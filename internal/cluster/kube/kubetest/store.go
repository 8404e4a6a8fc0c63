package kubetest

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// table holds the objects of one kind, guarded by Server.mu. Its objects are immutable and only
// replaced.
type table struct {
	kind     *kind
	objects  map[types.NamespacedName]object
	history  []change
	watchers map[*watcher]struct{}
}

// change is one write. old is nil for a new object; new is the last state of a deleted one.
type change struct {
	version  int64
	old, new object
	deleted  bool
}

func newTable(k *kind) *table {
	return &table{kind: k, objects: map[types.NamespacedName]object{}, watchers: map[*watcher]struct{}{}}
}

// write stores an object under the next resource version and notifies the watchers. deleted removes
// it instead. Server.mu is held.
func (s *Server) write(t *table, key types.NamespacedName, o object, deleted bool) object {
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	c := change{version: s.version, old: t.objects[key], new: o, deleted: deleted}
	if deleted {
		delete(t.objects, key)
	} else {
		t.objects[key] = o
	}
	t.history = append(t.history, c)
	for w := range t.watchers {
		w.offer(c)
	}
	return o
}

// selection selects the objects of a request.
type selection struct {
	namespace string // "" means all
	labels    labels.Selector
	fields    fields.Selector
	fieldsOf  func(object) fields.Set
}

func (s selection) matches(o object) bool {
	return o != nil && (s.namespace == "" || s.namespace == o.GetNamespace()) &&
		s.labels.Matches(labels.Set(o.GetLabels())) && s.fields.Matches(s.fieldsOf(o))
}

// event returns the change relative to the selection of a watch.
func (s selection) event(c change) (watch.Event, bool) {
	was, is := s.matches(c.old), s.matches(c.new) && !c.deleted
	switch {
	case was && is:
		return watch.Event{Type: watch.Modified, Object: c.new}, true
	case is:
		return watch.Event{Type: watch.Added, Object: c.new}, true
	case was && c.deleted:
		return watch.Event{Type: watch.Deleted, Object: c.new}, true
	case was: // exists, but is not selected any more: the last selected state, at the version of the change
		last := c.old.DeepCopyObject().(object)
		last.SetResourceVersion(c.new.GetResourceVersion())
		return watch.Event{Type: watch.Deleted, Object: last}, true
	}
	return watch.Event{}, false
}

// selected returns the objects of a selection, sorted by namespace and name. The caller holds
// Server.mu.
func (t *table) selected(s selection) []object {
	var out []object
	for _, o := range t.objects {
		if s.matches(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b object) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return out
}

func keyOf(o object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
