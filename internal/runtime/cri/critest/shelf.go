package critest

import (
	"maps"
	"slices"
)

// podLabel is the label with which agents select what belongs to one pod.
const podLabel = "io.kubernetes.pod.uid"

// shelf stores the sandboxes, or the containers, with an index by pod.
type shelf[T interface{ labels() map[string]string }] struct {
	all   map[string]T            // by ID
	ofPod map[string]map[string]T // by the pod's label, and ID
}

func newShelf[T interface{ labels() map[string]string }]() shelf[T] {
	return shelf[T]{all: map[string]T{}, ofPod: map[string]map[string]T{}}
}

func (s shelf[T]) add(id string, x T) {
	s.all[id] = x
	uid := x.labels()[podLabel]
	if s.ofPod[uid] == nil {
		s.ofPod[uid] = map[string]T{}
	}
	s.ofPod[uid][id] = x
}

func (s shelf[T]) remove(id string) {
	x, ok := s.all[id]
	if !ok {
		return
	}
	delete(s.all, id)
	uid := x.labels()[podLabel]
	if delete(s.ofPod[uid], id); len(s.ofPod[uid]) == 0 {
		delete(s.ofPod, uid)
	}
}

// selected returns the elements with the labels, sorted by ID.
func (s shelf[T]) selected(selector map[string]string) []T {
	from := s.all
	if uid, ok := selector[podLabel]; ok {
		from = s.ofPod[uid]
	}
	var found []T
	for _, id := range slices.Sorted(maps.Keys(from)) {
		if x := from[id]; selects(selector, x.labels()) {
			found = append(found, x)
		}
	}
	return found
}
