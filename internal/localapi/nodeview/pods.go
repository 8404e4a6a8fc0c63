package nodeview

import (
	"cmp"
	"errors"
	"maps"

	v1 "k8s.io/api/core/v1"

	"berth/internal/localapi/store"
	"berth/internal/pod"
)

// podNames maps UIDs and names of pods. A name has several pods while one terminates that another
// is to replace; the API shows one.
type podNames struct {
	source Source
	of     map[pod.UID]store.Key
	all    map[store.Key]map[pod.UID]struct{}
	// refused are the pods that represent rejected manifests.
	refused map[store.Key]*v1.Pod
}

func newPodNames(s Source) *podNames {
	return &podNames{source: s, of: map[pod.UID]store.Key{}, all: map[store.Key]map[pod.UID]struct{}{}, refused: map[store.Key]*v1.Pod{}}
}

func keyOf(p *v1.Pod) store.Key {
	return store.Key{Resource: "pods", Namespace: p.Namespace, Name: p.Name}
}

// update updates whether a pod exists, and returns its name, and false if it is unknown.
func (n *podNames) update(uid pod.UID) (store.Key, bool) {
	p, exists := n.source.Pod(uid)
	if exists {
		uid = p.UID // of a static pod, if uid is its mirror pod's
	}
	name, known := n.of[uid]
	switch {
	case exists && !known:
		name = keyOf(p)
		n.of[uid] = name
		if n.all[name] == nil {
			n.all[name] = map[pod.UID]struct{}{}
		}
		n.all[name][uid] = struct{}{}
	case !exists && known:
		delete(n.of, uid)
		if delete(n.all[name], uid); len(n.all[name]) == 0 {
			delete(n.all, name)
		}
	}
	return name, exists || known
}

// visible returns the pod that the API shows under a name, nil if none: the terminating one, since
// the other starts after it.
func (n *podNames) visible(name store.Key) *v1.Pod {
	var found *v1.Pod
	for uid := range n.all[name] {
		if p, ok := n.source.Pod(uid); ok && (found == nil || isBefore(p, found)) {
			found = p
		}
	}
	if found == nil {
		return n.refused[name]
	}
	return found
}

// isBefore reports whether a pod is terminating and the other is not; if equal, whether it has the
// lesser UID.
func isBefore(p, other *v1.Pod) bool {
	if terminates := p.DeletionTimestamp != nil; terminates != (other.DeletionTimestamp != nil) {
		return terminates
	}
	return cmp.Less(p.UID, other.UID)
}

func (r *Replica) writePod(uid pod.UID) error {
	name, known := r.pods.update(uid)
	if !known {
		return nil
	}
	return r.putPod(name)
}

func (r *Replica) writeRefused() error {
	names := r.pods.refused
	r.pods.refused = map[store.Key]*v1.Pod{}
	for _, p := range r.source.Refused() {
		r.pods.refused[keyOf(p)], names[keyOf(p)] = p, p
	}
	var errs []error
	for name := range names {
		errs = append(errs, r.putPod(name))
	}
	return errors.Join(errs...)
}

// putPod writes the pod of a name, or removes it.
func (r *Replica) putPod(name store.Key) error {
	p := r.pods.visible(name)
	if p == nil {
		return r.remove(name)
	}
	if err := r.ensureNamespace(p.Namespace); err != nil {
		return err
	}
	return r.put(name, completed(p))
}

// completed returns a pod as an API server has it: with a phase, which a new pod from a file lacks;
// with a creation time, for which the start time is used; and without the annotations that the
// agent adds to pods of the API.
func completed(p *v1.Pod) *v1.Pod {
	out := *p
	out.Status.Phase = cmp.Or(out.Status.Phase, v1.PodPending)
	if out.CreationTimestamp.IsZero() && out.Status.StartTime != nil {
		out.CreationTimestamp = *out.Status.StartTime
	}
	if pod.SourceOf(p) == pod.APISource {
		out.Annotations = maps.Clone(p.Annotations)
		delete(out.Annotations, pod.ConfigSourceAnnotation)
		delete(out.Annotations, pod.ConfigSeenAnnotation)
	}
	return &out
}
