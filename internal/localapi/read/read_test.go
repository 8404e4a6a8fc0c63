package read_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/read"
	"berth/internal/localapi/store"
)

// machine is a store with a handler over it.
type machine struct {
	*testing.T
	store       *store.Store
	handler     http.Handler
	undecodable map[string]int // how often lists went on without an object
}

func newMachine(t *testing.T, cfg store.Config) *machine {
	t.Helper()
	cfg.Path = t.TempDir() + "/api.db"
	s, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	m := &machine{T: t, store: s, undecodable: map[string]int{}}
	m.handler = read.New(read.Config{
		Store: s, Next: next, Log: slog.New(slog.DiscardHandler),
		Undecodable: func(key store.Key, _ error) { m.undecodable[key.String()]++ },
	})
	return m
}

func encode(o runtime.Object) ([]byte, error) {
	info, _ := runtime.SerializerInfoForMediaType(kinds.Codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return runtime.Encode(kinds.Codecs().EncoderForVersion(info.Serializer, v1.SchemeGroupVersion), o)
}

// put writes an object in the place of the one of the revision seen, and returns its own.
func (m *machine) put(seen uint64, o kinds.Object) uint64 {
	m.Helper()
	value, err := encode(o)
	if err != nil {
		m.Fatal(err)
	}
	resource := "pods"
	if _, ok := o.(*v1.ConfigMap); ok {
		resource = "configmaps"
	}
	revision, err := m.store.Write(store.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}, seen, value)
	if err != nil {
		m.Fatal(err)
	}
	return revision
}

func (m *machine) remove(seen uint64, resource, name string) uint64 {
	m.Helper()
	revision, err := m.store.Write(store.Key{Resource: resource, Namespace: "default", Name: name}, seen, nil)
	if err != nil {
		m.Fatal(err)
	}
	return revision
}

func configMap(name, data string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"data": data}}, Data: map[string]string{"k": data}}
}

// get answers a request that ends by itself.
func (m *machine) get(path string) (int, string) {
	m.Helper()
	r := httptest.NewRequestWithContext(m.Context(), http.MethodGet, path, http.NoBody)
	r.Header.Set("Accept", "application/json")
	w := httptest.NewRecorder()
	m.handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// decoded is get, of an object or a Status.
func decoded[T any](m *machine, path string, code int) T {
	m.Helper()
	got, body := m.get(path)
	if got != code {
		m.Errorf("%s: %d %s, want %d", path, got, body, code)
	}
	var o T
	if err := json.Unmarshal([]byte(body), &o); err != nil {
		m.Errorf("%s: %v: %s", path, err, body)
	}
	return o
}

const maps = "/api/v1/namespaces/default/configmaps"

func names(l v1.ConfigMapList) string {
	var all []string
	for _, i := range l.Items {
		all = append(all, i.Name+"="+i.Data["k"])
	}
	return strings.Join(all, " ")
}

func TestPagesShowTheRevisionOfTheFirst(t *testing.T) {
	m := newMachine(t, store.Config{MaxHistory: 8})
	revisions := map[string]uint64{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		revisions[name] = m.put(0, configMap(name, "old"))
	}
	first := decoded[v1.ConfigMapList](m, maps+"?limit=2", 200)
	if names(first) != "a=old b=old" || first.RemainingItemCount == nil || *first.RemainingItemCount != 3 {
		t.Errorf("the first page is %q, and %v remain", names(first), first.RemainingItemCount)
	}
	m.put(revisions["c"], configMap("c", "new"))
	m.remove(revisions["d"], "configmaps", "d")
	m.put(0, configMap("cc", "new"))
	second := decoded[v1.ConfigMapList](m, maps+"?limit=2&continue="+first.Continue, 200)
	if names(second) != "c=old d=old" || second.ResourceVersion != first.ResourceVersion || *second.RemainingItemCount != 1 {
		t.Errorf("the second page is %q of %s, after one of %s", names(second), second.ResourceVersion, first.ResourceVersion)
	}
	if third := decoded[v1.ConfigMapList](m, maps+"?limit=2&continue="+second.Continue, 200); names(third) != "e=old" || third.Continue != "" || third.RemainingItemCount != nil {
		t.Errorf("the third page is %q, and goes on with %q", names(third), third.Continue)
	}
	exact := decoded[v1.ConfigMapList](m, maps+"?resourceVersionMatch=Exact&resourceVersion="+first.ResourceVersion, 200)
	if names(exact) != "a=old b=old c=old d=old e=old" || exact.ResourceVersion != first.ResourceVersion {
		t.Errorf("the exact list is %q of %s", names(exact), exact.ResourceVersion)
	}

	for revision := revisions["a"]; m.store.Revision() < 30; {
		revision = m.put(revision, configMap("a", "newest"))
	}
	gone := decoded[metav1.Status](m, maps+"?limit=2&continue="+first.Continue, 410)
	if gone.Reason != metav1.StatusReasonExpired || !strings.HasPrefix(gone.Message, "The provided continue parameter is too old to display a consistent list result.") || gone.Continue == "" {
		t.Errorf("a token that is too old is answered %+v", gone)
	}
	rest := decoded[v1.ConfigMapList](m, maps+"?continue="+gone.Continue, 200)
	if names(rest) != "c=new cc=new e=old" || rest.ResourceVersion == first.ResourceVersion {
		t.Errorf("the rest is %q of %s", names(rest), rest.ResourceVersion)
	}
	gone = decoded[metav1.Status](m, maps+"?resourceVersionMatch=Exact&resourceVersion="+first.ResourceVersion, 410)
	if gone.Reason != metav1.StatusReasonExpired || gone.Continue != "" {
		t.Errorf("an exact list that is too old is answered %+v", gone)
	}
	if code, body := m.get(maps + "?limit=1&resourceVersion=2"); code != 410 {
		t.Errorf("a page of an old revision is answered %d %s", code, body)
	}
}

// An object that cannot be decoded is named. Lists in all forms have the others.
func TestUndecodableObjects(t *testing.T) {
	m := newMachine(t, store.Config{})
	m.put(0, configMap("a", "v"))
	// The last one has metadata that can be decoded, and content that cannot.
	whole := "k8s\x00\x12\x0c\x0a\x08\x0a\x06inside\x12\x7f"
	for name, value := range map[string]string{"json": "{}", "cut": "k8s\x00\x0a\x7f", "metadata": "k8s\x00\x12\x02\x0a\x7f", "inside": whole} {
		if _, err := m.store.Write(store.Key{Resource: "configmaps", Namespace: "default", Name: name}, 0, []byte(value)); err != nil {
			t.Fatal(err)
		}
		if s := decoded[metav1.Status](m, maps+"/"+name, 500); !strings.Contains(s.Message, "configmaps/default/"+name) {
			t.Errorf("%s: %q does not name the object", name, s.Message)
		}
	}
	m.put(0, configMap("z", "v"))
	for _, query := range []string{"", "?limit=500", "?labelSelector=a!%3Db", "?fieldSelector=metadata.name!%3Db"} {
		m.undecodable = map[string]int{}
		if l := decoded[v1.ConfigMapList](m, maps+query, 200); names(l) != "a=v z=v" {
			t.Errorf("the list %s is %q", query, names(l))
		}
		for _, name := range []string{"json", "cut", "metadata", "inside"} {
			if m.undecodable["configmaps/default/"+name] == 0 {
				t.Errorf("the list %s reports %v as undecodable", query, m.undecodable)
			}
		}
	}
}

func TestNamesThatNothingHas(t *testing.T) {
	m := newMachine(t, store.Config{})
	m.put(0, configMap("a", "v"))
	for _, path := range []string{maps + "/" + strings.Repeat("n", 1000), maps + "/a%00", maps + "/a%00b", "/api/v1/namespaces/default%00a/configmaps/a", "/api/v1/namespaces/" + strings.Repeat("n", 1000) + "/configmaps/a"} {
		if s := decoded[metav1.Status](m, path, 404); s.Reason != metav1.StatusReasonNotFound || s.Details.Kind != "configmaps" {
			t.Errorf("%.60s: %+v", path, s)
		}
	}
	if l := decoded[v1.ConfigMapList](m, "/api/v1/namespaces/default%00a/configmaps", 200); len(l.Items) != 0 {
		t.Errorf("a namespace that is none has %s", names(l))
	}
}

func TestTablesOfOtherKindsAreHandedOn(t *testing.T) {
	m := newMachine(t, store.Config{})
	for path, want := range map[string]int{maps: http.StatusTeapot, "/api/v1/pods": 200, "/apis/storage.k8s.io/v1/csinodes/x": http.StatusTeapot, "/api/v1/nodes/x": 404} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json")
		w := httptest.NewRecorder()
		if m.handler.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

// TestAListOfSeveralPages is longer than what is taken from the store at once.
func TestAListOfSeveralPages(t *testing.T) {
	m := newMachine(t, store.Config{})
	for i := range 11 {
		large := configMap(fmt.Sprintf("m%02d", i), strings.Repeat("x", 1<<20)+fmt.Sprint(i))
		large.Labels = nil
		m.put(0, large)
	}
	for _, accept := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, runtime.ContentTypeYAML} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, maps, http.NoBody)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		m.handler.ServeHTTP(w, r)
		o, err := runtime.Decode(kinds.Codecs().UniversalDeserializer(), w.Body.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", accept, err)
		}
		for i, item := range o.(*v1.ConfigMapList).Items {
			if item.Name != fmt.Sprintf("m%02d", i) || !strings.HasSuffix(item.Data["k"], fmt.Sprint("x", i)) || item.ResourceVersion != fmt.Sprint(i+2) {
				t.Errorf("%s: item %d is %s of %s", accept, i, item.Name, item.ResourceVersion)
			}
		}
		if n := len(o.(*v1.ConfigMapList).Items); n != 11 {
			t.Errorf("%s: %d items", accept, n)
		}
	}
}

// pipeWriter is an answer whose reader may be slow, or go.
type pipeWriter struct {
	header http.Header
	*io.PipeWriter
}

func (p pipeWriter) Header() http.Header { return p.header }
func (p pipeWriter) WriteHeader(int)     {}
func (p pipeWriter) FlushError() error   { return nil }

// watching is a watch whose events are gathered.
type watching struct {
	mu    sync.Mutex
	lines []string // guarded by mu
	ended bool     // guarded by mu
	leave context.CancelFunc
}

// watch begins a watch in a bubble.
func (m *machine) watch(query url.Values) *watching {
	ctx, cancel := context.WithCancel(m.Context())
	in, out := io.Pipe()
	w := &watching{leave: cancel}
	query.Set("watch", "1")
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, maps+"?"+query.Encode(), http.NoBody)
	go func() {
		m.handler.ServeHTTP(pipeWriter{http.Header{}, out}, r)
		_ = out.Close() // never fails
	}()
	go func() {
		lines := bufio.NewReader(in)
		for {
			line, err := lines.ReadString('\n')
			w.mu.Lock()
			if err != nil {
				w.ended = true
				w.mu.Unlock()
				return
			}
			w.lines = append(w.lines, line)
			w.mu.Unlock()
		}
	}()
	return w
}

// said is what came since the last call: types, names, data and revisions.
func (w *watching) said(t *testing.T) string {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, line := range w.lines {
		var e struct {
			Type   string
			Object struct {
				metav1.ObjectMeta `json:"metadata"`
				Data              map[string]string
				Code              int
				Reason            string
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%s %s=%s@%s", e.Type, e.Object.Name, e.Object.Data["k"], e.Object.ResourceVersion)
		switch {
		case e.Object.Code != 0:
			text = fmt.Sprintf("%s %d %s", e.Type, e.Object.Code, e.Object.Reason)
		case e.Object.Annotations[metav1.InitialEventsAnnotationKey] != "":
			text = fmt.Sprintf("INITIAL @%s", e.Object.ResourceVersion)
		case e.Type == "BOOKMARK":
			text = fmt.Sprintf("BOOKMARK @%s", e.Object.ResourceVersion)
		}
		all = append(all, text)
	}
	w.lines = nil
	return strings.Join(all, ", ")
}

func (w *watching) hasEnded() bool {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}
