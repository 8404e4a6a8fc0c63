package events

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// Annotations are those of the first occurrence, in the store, after a start, and at the API
// server.
func TestAnnotatedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		api, sender := start(t)
		store, end := openStore(t, dir)
		j := journal.New(slog.New(slog.DiscardHandler))
		r := NewRecorder(Config{Journal: j, Store: store, Sender: sender, Node: "node"})
		p := &v1.Pod{}
		p.Name, p.Namespace, p.UID = "web", "default", "uid"
		annotations := map[string]string{"starved_resource": "memory", "offending_containers": "a,b", "offending_containers_usage": ""}
		r.AnnotatedEvent(p, annotations, v1.EventTypeWarning, "Evicted", "low")
		r.AnnotatedEvent(p, map[string]string{"other": "x"}, v1.EventTypeWarning, "Evicted", "low")
		r.AnnotatedEvent(p, nil, v1.EventTypeWarning, "ExceededGracePeriod", "late")
		synctest.Wait()
		check := func(where string, of []*v1.Event) {
			t.Helper()
			got := map[string]map[string]string{}
			for _, e := range of {
				got[e.Reason] = e.Annotations
			}
			if diff := cmp.Diff(map[string]map[string]string{"Evicted": annotations, "ExceededGracePeriod": nil}, got); diff != "" || len(of) != 2 {
				t.Errorf("%s (-want +got):\n%s", where, diff)
			}
		}
		check("the API server", api.list())
		check("the store", store.List())
		end()
		store, end = openStore(t, dir)
		check("after a start", store.List())
		store.Add(v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}, v1.EventTypeNormal, "Started", "")
		if e, ok := store.Get(store.List()[2].Name); !ok || e.Annotations != nil {
			t.Errorf("another one: %+v", e)
		}
		end()
		entries := j.Read("default", "web")
		if len(entries) != 2 || entries[0].Error != "low" || entries[1].Decision != "ExceededGracePeriod" {
			t.Errorf("journal %+v", entries)
		}
	})
}
