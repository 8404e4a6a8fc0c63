package server_test

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// aside is a quarantine that has one pod.
type aside struct {
	uid      pod.UID
	released []string
}

func (q *aside) Why(uid pod.UID) (string, bool) { return "panic: x", uid == q.uid }

func (q *aside) Release(namespace, name string) bool {
	q.released = append(q.released, namespace+"/"+name)
	return name == "web"
}

func TestExplain(t *testing.T) {
	n := newNode(aPod("web", "u2", v1.PodRunning), aPod("db", "u3", v1.PodRunning))
	for _, uid := range []pod.UID{"u1", "u2"} {
		n.journal.Record(journal.Entry{Subject: journal.Subject{UID: uid, Namespace: "default", Name: "web"}, Decision: "accepted"})
	}
	n.journal.Record(journal.Entry{Subject: journal.Subject{Name: "broken.yaml"}, Decision: "manifest refused"})
	n.problems = []manifest.Problem{{Path: "/m/broken.yaml", Message: "no"}, {Path: "/m/web.yaml", Namespace: "default", Name: "web", Message: "odd"}}
	h := n.handlers()
	q := &aside{uid: "u2"}
	h.Explain.Quarantine = q
	a := serve(t, h)

	type short struct {
		Pods, Stories, Problems int
		Quarantined             map[pod.UID]string
	}
	for path, want := range map[string]short{
		"/berth/v1/explain/default/web":         {1, 2, 1, map[pod.UID]string{"u2": "panic: x"}},
		"/berth/v1/explain?subject=broken.yaml": {0, 1, 1, nil},
	} {
		var e explain.Report
		decode(t, a.get(path), &e)
		if diff := cmp.Diff(want, short{len(e.Pods), len(e.Stories), len(e.Problems), e.Quarantined}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	for path, want := range map[string]int{
		"/berth/v1/explain/default/db": http.StatusNotFound, // the journal has nothing of it
		"/berth/v1/explain":            http.StatusNotFound,
	} {
		if got := a.get(path); got.Status != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	for path, want := range map[string]int{"/berth/v1/release/default/web": http.StatusNoContent, "/berth/v1/release/default/db": http.StatusNotFound} {
		if got := a.ask(http.MethodPost, path, nil); got.Status != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if len(q.released) != 2 {
		t.Errorf("released %v", q.released)
	}
}

// What the agent says about itself is root's: ends of logs are among it.
func TestOnlyTheSocketExplains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(aPod("web", "2", v1.PodRunning))
		n.journal.Record(journal.Entry{Subject: journal.Subject{UID: "2", Namespace: "default", Name: "web"}, Decision: "accepted"})
		h := n.handlers()
		h.Explain.Quarantine = &aside{}
		k := serveKubelet(t, h, server.Kubelet{Authentication: server.Authentication{Anonymous: true}})
		for _, door := range []*pipeListener{k.secure, k.readOnly, k.healthz} {
			for _, path := range []string{"/berth/v1/explain/default/web", "/berth/v1/journal", "/berth/v1/journal/default/web"} {
				if got := k.ask(door, "GET", path, credential{}); got.Status != http.StatusNotFound {
					t.Errorf("%s: %+v", path, got)
				}
			}
			if got := k.ask(door, "POST", "/berth/v1/release/default/web", credential{}); got.Status != http.StatusNotFound {
				t.Errorf("release: %+v", got)
			}
		}
	})
}
