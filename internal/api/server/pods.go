package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// WatchEvent is one line of a watch, in the form of metav1.WatchEvent.
type WatchEvent struct {
	Type   EventType `json:"type"`
	Object *v1.Pod   `json:"object"`
}

// EventType is the type of a watch event; the values are those of k8s.io/apimachinery/pkg/watch.
type EventType string

// The types of watch events. A watch begins with an Added for every pod, then a Bookmark with an
// empty pod, which marks the end of the list. Each further Bookmark means that the problems of
// manifests changed.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK"
)

// podHandlers serve the pods of the node.
type podHandlers struct {
	*answerer
	h     *Handlers
	lists *podLists
}

func (p podHandlers) getPods(w http.ResponseWriter, r *http.Request) {
	watch := false
	if v := r.URL.Query().Get("watch"); v != "" {
		var err error
		if watch, err = strconv.ParseBool(v); err != nil {
			http.Error(w, fmt.Sprintf("watch: %q is neither true nor false", v), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if !watch {
		p.ended(r, p.lists.pods.write(w, p.h.Pods()))
		return
	}
	p.ended(r, p.stream(w, func() error { return p.watchPods(r.Context(), w) }))
}

// watchPods writes an event per change. For a slow client, only UIDs are queued and the pod is
// written in its current state, so that the client may miss intermediate states but never the last
// one.
func (p podHandlers) watchPods(ctx context.Context, w http.ResponseWriter) error {
	changed, cancel := p.h.Subscribe()
	defer cancel()
	v := watcher{out: json.NewEncoder(w), seen: map[pod.UID]*v1.Pod{}}
	for _, one := range p.h.Pods() {
		if err := v.update(one); err != nil {
			return err
		}
	}
	if err := v.bookmark(); err != nil {
		return err
	}
	flush := http.NewResponseController(w).Flush
	for {
		if err := flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed.Wake():
		}
		if err := v.take(changed.Take(), p.h.Pod); err != nil {
			return err
		}
	}
}

// getPodList returns the pods of the node, static pods with their status.
func (p podHandlers) getPodList(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	p.ended(r, p.lists.pods.write(w, p.h.Pods()))
}

// getRunningPods returns the pods that the runtime reports as running, with only the fields that
// the runtime has.
func (p podHandlers) getRunningPods(w http.ResponseWriter, r *http.Request) {
	var running []*v1.Pod
	for _, s := range p.h.ObservedPods() {
		one := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID}}
		for i := range s.Containers {
			if c := &s.Containers[i]; c.State == pod.StateRunning {
				one.Spec.Containers = append(one.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(one.Spec.Containers) > 0 {
			running = append(running, one)
		}
	}
	slices.SortFunc(running, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	w.Header().Set("Content-Type", "application/json")
	p.ended(r, p.lists.running.write(w, running))
}

// watcher is the state of one watch.
type watcher struct {
	out  *json.Encoder
	seen map[pod.UID]*v1.Pod // as last written
}

// take writes the events of the pods: deletions first, so that a pod that reuses a name follows.
func (v *watcher) take(uids []pod.UID, get func(pod.UID) (*v1.Pod, bool)) error {
	slices.Sort(uids)
	var alive []*v1.Pod
	for _, uid := range uids {
		p, ok := get(uid)
		switch {
		case uid == "":
			if err := v.bookmark(); err != nil {
				return err
			}
		case ok:
			alive = append(alive, p)
		default:
			if err := v.remove(uid); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(alive, func(a, b *v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, p := range alive {
		if err := v.update(p); err != nil {
			return err
		}
	}
	return nil
}

func (v *watcher) update(p *v1.Pod) error {
	t := Added
	if old, ok := v.seen[p.UID]; ok {
		if old == p || reflect.DeepEqual(old, p) {
			return nil // changed and reverted, or changed in fields that the API does not show
		}
		t = Modified
	}
	v.seen[p.UID] = p
	return v.write(t, p)
}

func (v *watcher) remove(uid pod.UID) error {
	p, ok := v.seen[uid]
	if !ok {
		return nil // created and deleted between two reads
	}
	delete(v.seen, uid)
	return v.write(Deleted, p)
}

func (v *watcher) bookmark() error { return v.write(Bookmark, &v1.Pod{}) }

func (v *watcher) write(t EventType, p *v1.Pod) error {
	shown := *p // the pod is shared; only the copy's type is set
	shown.Kind, shown.APIVersion = "Pod", "v1"
	if err := v.out.Encode(WatchEvent{Type: t, Object: &shown}); err != nil {
		return fmt.Errorf("write %s of pod %s/%s: %w", t, p.Namespace, p.Name, err)
	}
	return nil
}
