//go:build e2e

package localapi

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"berth/internal/localapi"
	"berth/internal/localapi/apiserver"
)

// counted has the API count the children that it starts.
func counted(n *atomic.Int32) func(*localapi.Config) {
	return func(cfg *localapi.Config) {
		cfg.Confine = func() (apiserver.Cgroup, error) {
			n.Add(1)
			return nil, errors.New("it is only counted")
		}
	}
}

// TestDocuments asks for documents at an API that has the file of them and at one that asks its
// child: both say the same, and only the latter starts a child.
func TestDocuments(t *testing.T) {
	t.Parallel()
	var ofFile, ofChild atomic.Int32
	file, _ := start(t, folder(t), counted(&ofFile))
	child, _ := start(t, folder(t), counted(&ofChild), func(cfg *localapi.Config) { cfg.Documents = nil })
	compared := 0
	for _, q := range documentQuestions(child) {
		want, got := child.document(q), file.document(q)
		// What a child was last asked for at is not what it was made at.
		want.header.Del("Last-Modified")
		got.header.Del("Last-Modified")
		if diff := cmp.Diff(want.header, got.header); want.code != got.code || diff != "" || want.body != got.body {
			t.Errorf("%+v: %d of the child, %d of the file, the same body: %v (-child +file):\n%s", q, want.code, got.code, want.body == got.body, diff)
		}
		if compared++; q.odd {
			continue
		}
		if got.code != http.StatusOK && got.code != http.StatusNotModified {
			t.Errorf("%+v: %d", q, got.code)
		}
		if n := ofFile.Load(); n != 0 {
			t.Fatalf("%+v has started %d children", q, n)
		}
	}
	if compared < 300 || ofChild.Load() == 0 {
		t.Errorf("%d questions were asked, and %d children started", compared, ofChild.Load())
	}
}

// TestKubectlStartsNoChild reads by a kubectl that knows nothing yet.
func TestKubectlStartsNoChild(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	s, _ := start(t, folder(t), counted(&n))
	s.must("", []string{"wait", "--for=create", "serviceaccount/default", "--timeout=30s"})
	s.must("", []string{"get", "pods"}, "No resources found")
	s.must("", []string{"api-resources"}, "storageclasses", "csinodes", "PriorityClass")
	s.must("", []string{"explain", "pod.spec.nodeName"}, "FIELD: nodeName <string>")
	s.must("", []string{"version"}, "Server Version: v1.")
	s.must("", []string{"get", "serviceaccount", "default", "-o", "yaml"}, "name: default")
	if got := s.document(documentQuestion{path: "/metrics", accept: "text/plain"}); got.code != http.StatusNotFound {
		t.Errorf("/metrics is answered %d %s", got.code, got.body)
	}
	if got := n.Load(); got != 0 {
		t.Errorf("%d children were started", got)
	}
	s.must("", []string{"create", "configmap", "tree"}, "configmap/tree created")
	if got := n.Load(); got != 1 {
		t.Errorf("%d children were started by a write", got)
	}
}

// documentQuestion is a request for a document. The answer to an odd one need not be in the file.
type documentQuestion struct {
	method, path, accept, encoding, known, agent string
	odd                                          bool
}

const aggregated = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// documentQuestions are all documents in all forms, and behind them odd requests for some.
func documentQuestions(s *server) []documentQuestion {
	s.Helper()
	var listed struct{ Paths []string }
	var below struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	s.decode("/", &listed)
	s.decode("/openapi/v3", &below)
	var all []documentQuestion
	add := func(path string, accepts ...string) {
		for _, accept := range accepts {
			for _, encoding := range []string{"identity", "deflate, gzip"} {
				all = append(all, documentQuestion{path: path, accept: accept, encoding: encoding})
			}
		}
	}
	for _, path := range listed.Paths {
		switch {
		case path == "/api" || path == "/apis":
			const old = "application/json" + ";g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
			add(path, "application/json"+aggregated, "application/vnd.kubernetes.protobuf"+aggregated,
				"application/json"+aggregated+","+old+",application/json", old+",application/json", "application/vnd.kubernetes.protobuf"+aggregated+",application/json"+aggregated+";q=0.9")
			fallthrough
		case strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/"):
			add(path, "", "*/*", "application/json", "application/json, */*", "application/vnd.kubernetes.protobuf,application/json", "application/yaml", "application/vnd.kubernetes.protobuf",
				"text/html,application/json;q=0.5")
		case path == "/openapi/v2":
			add(path, "", "application/json", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "application/json, */*")
		case path == "/openapi/v3" || path == "/version" || path == "/version/":
			add(strings.TrimSuffix(path, "/"), "", "application/json", "application/json, */*")
		}
	}
	for _, of := range slices.Sorted(maps.Keys(below.Paths)) {
		add("/openapi/v3/"+of, "application/json", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
		add(below.Paths[of].ServerRelativeURL, "*/*", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
		add(below.Paths[of].ServerRelativeURL+"&timeout=32s", "application/json")
	}
	all = append(all, documentOddities(s, below.Paths["api/v1"].ServerRelativeURL)...)
	plain, odd := []documentQuestion{}, []documentQuestion{}
	for _, q := range all {
		if q.odd {
			odd = append(odd, q)
		} else {
			plain = append(plain, q)
		}
	}
	return append(plain, odd...) // which may start a child
}

func documentOddities(s *server, core string) []documentQuestion {
	var all []documentQuestion
	for path, accept := range map[string]string{"/apis": "application/json" + aggregated, "/openapi/v2": "application/json", "/openapi/v3": "application/json", core: "application/json", "/api/v1": "application/json"} {
		tag := s.document(documentQuestion{path: path, accept: accept}).header.Get("Etag")
		for _, encoding := range []string{"identity", "gzip"} {
			all = append(all, documentQuestion{path: path, accept: accept, encoding: encoding, known: tag}, documentQuestion{path: path, accept: accept, encoding: encoding, known: `"X"`})
		}
		all = append(all, documentQuestion{path: path, accept: accept, known: `"X", ` + tag, odd: true}, documentQuestion{path: path, accept: accept, known: "*", odd: true})
	}
	all = append(all, documentQuestion{path: "/api/v1?timeout=32s", accept: "application/json"})
	for _, path := range []string{"/api/v1?timeout=x", "/api/v1?pretty=1", "/openapi/v3/api/v1?hash=X", "/openapi/v3/nope", "/apis/nope", "/api/", "/api/v1/", "/version/"} {
		all = append(all, documentQuestion{path: path, accept: "application/json", odd: true})
	}
	for _, accept := range []string{"text/html", "application/*", "application/json;q=0", "application/json;pretty=1", "application/json;foo=bar", "application/json;as=Table;g=meta.k8s.io;v=v1", "application/cbor", ",", "application/JSON", "*/*;q=0.1,application/yaml", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"} {
		for _, path := range []string{"/apis", "/api/v1", "/openapi/v2", "/version"} {
			all = append(all, documentQuestion{path: path, accept: accept, odd: true})
		}
	}
	for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodOptions} {
		for _, path := range []string{"/apis", "/openapi/v2", "/version"} {
			all = append(all, documentQuestion{method: method, path: path, accept: "application/json", odd: true})
		}
	}
	for _, agent := range []string{"curl/8", "Mozilla/5.0 (X11)"} {
		all = append(all, documentQuestion{path: "/api/v1", agent: agent, odd: true}, documentQuestion{path: "/apis", accept: "application/json" + aggregated, agent: agent, odd: true})
	}
	return all
}

type documentAnswer struct {
	code   int
	header http.Header
	body   string // not compressed
}

// document asks for a document.
func (s *server) document(q documentQuestion) documentAnswer {
	s.Helper()
	config := s.config()
	transport, err := rest.TransportFor(config)
	if err != nil {
		s.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.Context(), q.method, config.Host+q.path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	for name, value := range map[string]string{"Accept": q.accept, "Accept-Encoding": q.encoding, "If-None-Match": q.known, "User-Agent": q.agent} {
		if value != "" || name == "Accept-Encoding" || name == "User-Agent" {
			r.Header.Set(name, value)
		}
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		s.Fatalf("%+v: %v", q, err)
	}
	defer response.Body.Close()
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" && response.StatusCode != http.StatusNotModified {
		if body, err = gzip.NewReader(body); err != nil {
			s.Fatalf("%+v: %v", q, err)
		}
	}
	text, err := io.ReadAll(body)
	if err != nil {
		s.Fatalf("%+v: %v", q, err)
	}
	for _, name := range []string{"Date", "Audit-Id", "Content-Length", "Expires"} { // Expires is of that moment
		if name != "Expires" || response.Header.Get(name) == "" {
			response.Header.Del(name)
			continue
		}
		response.Header.Set(name, "in a year")
	}
	return documentAnswer{response.StatusCode, response.Header, string(text)}
}

// decode reads a document of JSON.
func (s *server) decode(path string, into any) {
	s.Helper()
	if err := json.Unmarshal([]byte(s.document(documentQuestion{path: path, accept: "application/json"}).body), into); err != nil {
		s.Fatalf("%s: %v", path, err)
	}
}
