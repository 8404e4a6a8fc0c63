package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// WatchEvent is one line of a watch, in the form of metav1.WatchEvent.
type WatchEvent struct {
	Type   EventType `json:"type"`
	Object *v1.Pod   `json:"object"`
}

// EventType says what became of the pod; the words are those of k8s.io/apimachinery/pkg/watch.
type EventType string

// The types of watch events. A watch begins with an Added for every pod, then a Bookmark, whose pod is empty: all were named.
// Each further Bookmark says that the problems of manifests changed.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK"
)

func (d *door) getPods(w http.ResponseWriter, r *http.Request) {
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
		d.ended(r, d.lists.pods.write(w, d.h.Pods()))
		return
	}
	d.ended(r, d.stream(w, func() error { return d.watchPods(r.Context(), w) }))
}

// watchPods writes an event per change. However slowly the client reads, the agent only puts UIDs into the inbox; what is written
// is the pod as it is then, so that a slow client misses intermediate states and never the last one.
func (d *door) watchPods(ctx context.Context, w http.ResponseWriter) error {
	changed, cancel := d.h.Subscribe()
	defer cancel()
	v := watcher{out: json.NewEncoder(w), seen: map[pod.UID]*v1.Pod{}}
	for _, p := range d.h.Pods() {
		if err := v.update(p); err != nil {
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
		if err := v.take(changed.Take(), d.h.Pod); err != nil {
			return err
		}
	}
}

// watcher is one watch: what its client knows.
type watcher struct {
	out  *json.Encoder
	seen map[pod.UID]*v1.Pod // as last written
}

// take writes what became of the pods: the deleted first, so that a pod that took another's name follows it.
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
			return nil // changed and changed back, or changed in what the API does not show
		}
		t = Modified
	}
	v.seen[p.UID] = p
	return v.write(t, p)
}

func (v *watcher) remove(uid pod.UID) error {
	p, ok := v.seen[uid]
	if !ok {
		return nil // came and went between two readings
	}
	delete(v.seen, uid)
	return v.write(Deleted, p)
}

func (v *watcher) bookmark() error { return v.write(Bookmark, &v1.Pod{}) }

func (v *watcher) write(t EventType, p *v1.Pod) error {
	shown := *p // the pod is shared; only its own type is set here
	shown.Kind, shown.APIVersion = "Pod", "v1"
	if err := v.out.Encode(WatchEvent{Type: t, Object: &shown}); err != nil {
		return fmt.Errorf("write %s of pod %s/%s: %w", t, p.Namespace, p.Name, err)
	}
	return nil
}
