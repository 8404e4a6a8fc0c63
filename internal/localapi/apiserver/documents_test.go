package apiserver

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// documentedAPI is an API with a few documents. Test/e2e/localapi holds those of the real program
// against the file of them.
func documentedAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", "now")
	w.Header().Set("Audit-Id", r.URL.Path)
	accept := r.Header.Get("Accept")
	answer := func(mediaType, tag, body string) {
		w.Header().Set("Content-Type", mediaType)
		if tag != "" {
			w.Header().Set("Etag", `"`+tag+`"`)
			w.Header().Set("Last-Modified", "now")
		}
		if r.URL.Path == "/openapi/v2" && r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
		}
		_, _ = io.WriteString(w, body)
	}
	switch {
	case r.Header.Get(UserHeader) == "":
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/":
		answer("application/json", "", `{"paths":["/api","/api/v1","/apis","/healthz","/openapi/v2","/openapi/v3","/openapi/v3/","/version/"]}`)
	case r.URL.Path == "/openapi/v3":
		answer("application/json", "list", `{"paths":{"api/v1":{}}}`)
	case r.URL.Path == "/openapi/v3/api/v1" && accept == "application/json":
		answer(accept, "core", `{"openapi":"3.0.0"}`)
	case r.URL.Path == "/openapi/v2" && accept == "application/json":
		answer(accept, "two", strings.Repeat(`{"swagger":"2.0"}`, 1000))
	case strings.HasPrefix(r.URL.Path, "/api") && (accept == "application/json" || accept == "application/vnd.kubernetes.protobuf"):
		answer(accept, "", "plain "+r.URL.Path+" as "+accept)
	case strings.HasPrefix(r.URL.Path, "/api") && r.URL.Path != "/api/v1" && strings.Contains(accept, "json;g=apidiscovery"):
		answer(accept, "all", "all")
	case r.URL.Path == "/version" && accept == "application/json":
		answer(accept, "", "v1")
	default:
		w.WriteHeader(http.StatusNotAcceptable)
	}
}

func keepDocuments(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	if err := KeepDocuments(t.Context(), http.HandlerFunc(documentedAPI), time.Unix(1e9, 0), &b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "documents")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDocuments(t *testing.T) {
	d, err := OpenDocuments(keepDocuments(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	swagger := strings.Repeat(`{"swagger":"2.0"}`, 1000)
	const all = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for _, c := range []struct {
		path   string
		header []string // "name: value"
		code   int      // 0 is for the child
		body   string
		want   []string // of the header
	}{
		{"/api/v1", nil, 200, "plain /api/v1 as application/json", []string{"Content-Type: application/json", "Date: ", "Audit-Id: "}},
		{"/api/v1", []string{"Accept: */*"}, 200, "plain /api/v1 as application/json", nil},
		{"/api/v1", []string{"Accept: text/html,application/vnd.kubernetes.protobuf;q=0.3"}, 200, "plain /api/v1 as application/vnd.kubernetes.protobuf", nil},
		{"/api/v1?timeout=32s", []string{"Accept: " + all + ",application/json"}, 200, "plain /api/v1 as application/json", nil},
		{"/apis", []string{"Accept: application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList," + all}, 200, "all", []string{"Content-Type: " + all, `Etag: "all"`}},
		{"/apis", []string{"Accept: " + all, `If-None-Match: "all"`}, 304, "", []string{"Content-Type: ", `Etag: "all"`}},
		{"/apis", []string{"Accept: " + all, `If-None-Match: "else"`}, 200, "all", nil},
		{"/apis", []string{"Accept: " + all, `If-None-Match: "else", "all"`}, 0, "", nil},
		{"/apis", []string{"Accept: application/json;foo=bar"}, 0, "", nil},
		{"/apis", []string{"Accept: application/json;q=0"}, 0, "", nil},
		{"/apis", []string{"Accept: application/*"}, 0, "", nil},
		{"/apis", []string{"Accept: application/yaml"}, 0, "", nil},
		{"/apis", []string{"User-Agent: curl/8"}, 0, "", nil},
		{"/apis?pretty=1", nil, 0, "", nil},
		{"/apis?timeout=soon", nil, 0, "", nil},
		{"/apis/nope", nil, 0, "", nil},
		{"/openapi/v2", []string{"Accept-Encoding: deflate, gzip"}, 200, swagger, []string{"Content-Encoding: gzip", `Etag: "two"`, "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT"}},
		{"/openapi/v2", nil, 200, swagger, []string{"Content-Encoding: "}},
		{"/openapi/v2", []string{"Accept-Encoding: gzip;q=0"}, 0, "", nil},
		{"/openapi/v2", []string{"Range: bytes=0-9"}, 0, "", nil},
		{"/openapi/v3/api/v1", []string{"Accept-Encoding: gzip"}, 200, `{"openapi":"3.0.0"}`, []string{"Content-Encoding: ", "Expires: "}},
		{"/openapi/v3/api/v1?hash=core", nil, 200, `{"openapi":"3.0.0"}`, []string{"Cache-Control: public, immutable"}},
		{"/openapi/v3/api/v1?hash=older", nil, 0, "", nil},
		{"/version", nil, 200, "v1", nil},
		{"/healthz", nil, 0, "", nil},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, http.NoBody)
		for _, line := range c.header {
			name, value, _ := strings.Cut(line, ": ")
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		code := 0
		if d.Answer(w, r) {
			code = w.Code
		}
		if code != c.code || readBody(t, w) != c.body {
			t.Errorf("%s %q: %d %.200q, want %d %.200q", c.path, c.header, code, w.Body, c.code, c.body)
		}
		for _, line := range c.want {
			if name, value, _ := strings.Cut(line, ": "); w.Header().Get(name) != value {
				t.Errorf("%s %q: %s is %q, want %q", c.path, c.header, name, w.Header().Get(name), value)
			}
		}
	}
	if d.Answer(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/apis", http.NoBody)) {
		t.Error("a HEAD is answered")
	}
}

func readBody(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	body := io.Reader(bytes.NewReader(w.Body.Bytes()))
	if w.Header().Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			t.Fatal(err)
		}
		body = z
	}
	b, err := io.ReadAll(body) // of gzip, with its checksum
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDocumentsStartNoChild(t *testing.T) {
	d, err := OpenDocuments(keepDocuments(t))
	if err != nil {
		t.Fatal(err)
	}
	p := newProcess()
	close(p.serves)
	r, started := childOf(t, p)
	r.documents = d
	asked := func(path string) int {
		w, q := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.ServeHTTP(w, q.WithContext(WithIdentity(q.Context(), Identity{Name: "ann"})))
		return w.Code
	}
	if code := asked("/version"); code != 200 || *started != 0 {
		t.Errorf("a document is answered %d by %d children", code, *started)
	}
	if code := asked("/healthz"); code != 200 || *started != 1 {
		t.Errorf("what is none is answered %d by %d children", code, *started)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestDocumentsHaveTheSameBytes(t *testing.T) {
	var both [2][]byte
	for i := range both {
		content, err := os.ReadFile(keepDocuments(t))
		if err != nil {
			t.Fatal(err)
		}
		both[i] = content
	}
	if !bytes.Equal(both[0], both[1]) {
		t.Error("two files of the same documents differ")
	}
}

func TestDocumentsThatAreNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "documents")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, path + "-none"} {
		if _, err := OpenDocuments(p); err == nil || !strings.Contains(err.Error(), p) || !strings.Contains(err.Error(), "apiserver documents FILE") {
			t.Errorf("%s: %v, want the path and what to do", p, err)
		}
	}
	refusing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		documentedAPI(w, r)
	})
	err := KeepDocuments(t.Context(), refusing, time.Unix(1e9, 0), io.Discard)
	if diff := cmp.Diff("/apis is answered 500, and 500 where it may be compressed", errorText(err)); diff != "" {
		t.Error(diff)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
