package read_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/read"
	"berth/internal/localapi/store"
)

// pulling is a machine that tells of pulls.
type pulling struct {
	*machine
	asked int
	mark  string
}

func newPulling(t *testing.T) *pulling {
	t.Helper()
	p := &pulling{machine: newMachine(t, store.Config{}), mark: " (pulling 3%)"}
	p.handler = read.New(read.Config{
		Store: p.store, Next: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
		Pulls: func(context.Context) func(*v1.Pod) string {
			p.asked++
			mark := p.mark
			return func(of *v1.Pod) string {
				if of.Name == "other" {
					return ""
				}
				return mark
			}
		},
	})
	return p
}

func (p *pulling) pod(seen uint64, name string, phase v1.PodPhase) uint64 {
	p.Helper()
	return p.put(seen, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Status: v1.PodStatus{Phase: phase}})
}

// rows answers a request for a table with the cell of each row that has the status.
func (p *pulling) rows(path string) []string {
	p.Helper()
	r := httptest.NewRequestWithContext(p.Context(), http.MethodGet, path, http.NoBody)
	r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	w := httptest.NewRecorder()
	p.handler.ServeHTTP(w, r)
	var out []string
	for d := json.NewDecoder(w.Body); d.More(); {
		var table metav1.Table
		var event struct{ Object *metav1.Table }
		into := any(&table)
		if r.URL.Query().Has("watch") {
			event.Object, into = &table, &event
		}
		if err := d.Decode(into); err != nil {
			p.Fatal(err)
		}
		for _, row := range table.Rows {
			out = append(out, row.Cells[2].(string))
		}
	}
	return out
}

// The rows of pods that wait for their images say how far these are. It is looked for once for a
// list, and not at all where no pod waits.
func TestRowsTellOfPulls(t *testing.T) {
	p := newPulling(t)
	running := p.pod(0, "a", v1.PodRunning)
	if got := p.rows("/api/v1/pods"); !slices.Equal(got, []string{"Running"}) || p.asked != 0 {
		t.Errorf("%q, and pulls were asked for %d times", got, p.asked)
	}
	p.pod(running, "a", v1.PodPending)
	p.pod(0, "b", v1.PodPending)
	p.pod(0, "other", v1.PodPending)
	want := []string{"Pending (pulling 3%)", "Pending (pulling 3%)", "Pending"}
	if got := p.rows("/api/v1/pods"); !slices.Equal(got, want) || p.asked != 1 {
		t.Errorf("%q, and pulls were asked for %d times; want %q", got, p.asked, want)
	}
	if got := p.rows("/api/v1/namespaces/default/pods/b"); !slices.Equal(got, want[1:2]) {
		t.Errorf("of one pod: %q", got)
	}
	if code, body := p.get("/api/v1/pods"); code != http.StatusOK || p.asked != 2 {
		t.Errorf("objects ask for pulls: %d times, %d %s", p.asked, code, body)
	}
}

// A watch looks anew for each row: its last look may be long ago.
func TestWatchedRowsTellOfPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPulling(t)
		version := p.pod(0, "a", v1.PodPending)
		go func() {
			synctest.Wait()
			p.mark = " (pulling 99%)"
			p.pod(p.pod(version, "a", v1.PodPending), "a", v1.PodRunning)
		}()
		got := p.rows("/api/v1/pods?watch=1&resourceVersion=1&timeoutSeconds=5")
		want := []string{"Pending (pulling 3%)", "Pending (pulling 99%)", "Running"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestNamespaceRows(t *testing.T) {
	m := newMachine(t, store.Config{})
	value, err := encode(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1.NamespaceStatus{Phase: v1.NamespaceTerminating}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.store.Write(store.Key{Resource: "namespaces", Name: "a"}, 0, value); err != nil {
		t.Fatal(err)
	}
	if got := (&pulling{machine: m}).rows("/api/v1/namespaces"); !slices.Equal(got, []string{"<unknown>"}) {
		t.Errorf("the age of a namespace that nobody says the age of is %q", got)
	}
}
