//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/read"
	"berth/internal/localapi/store"
)

// TestReadsAsAPIServer asks the local API and a real API server that have the same objects the same
// questions.
func TestReadsAsAPIServer(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.up("--arg", "kube-controller-manager=--controllers=serviceaccount-controller")
	config, err := kube.LoadKubeconfig(c.dir + "/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	makeReadsObjects(t, c, config)
	s, err := store.Open(store.Config{Path: t.TempDir() + "/api.db"})
	if err != nil {
		t.Fatal(err)
	}
	version := copyReadsObjects(t, config, s)
	server := httptest.NewServer(read.New(read.Config{Store: s, Next: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(func() {
		server.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	theirs := readsServer{client: client, host: config.Host, now: version}
	ours := readsServer{client: server.Client(), host: server.URL, now: fmt.Sprint(s.Revision())}
	compareReads(t, ours, theirs)
}

// compareReads asks both. What differs must be in readsDiffer, and what is there must differ.
func compareReads(t *testing.T, ours, theirs readsServer) {
	t.Helper()
	asked := readsRequests()
	if len(asked) < 500 {
		t.Errorf("%d requests are too few", len(asked))
	}
	var mu sync.Mutex
	differ := map[string]bool{}
	var g errgroup.Group
	g.SetLimit(64) // most of them wait: for the end of a watch, or for a version that does not come
	for _, q := range asked {
		g.Go(func() error {
			var both errgroup.Group
			var want, got []readsAnswer
			both.Go(func() (err error) { want, err = theirs.ask(t, q); return err })
			both.Go(func() (err error) { got, err = ours.ask(t, q); return err })
			if err := both.Wait(); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(want, got); diff != "" {
				differ[q.String()] = true
				if readsDiffer[q.String()] == "" {
					t.Errorf("%s (-API server +ours):\n%s", q, diff)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for _, q := range slices.Sorted(maps.Keys(readsDiffer)) {
		if !differ[q] {
			t.Errorf("%s no longer differs (%s), or is not asked: take it from the list", q, readsDiffer[q])
		}
	}
	t.Logf("%d requests, of which %d differ", len(asked), len(differ))
}

// readsRequest is a question to both.
type readsRequest struct {
	method, path, accept string
	gzip                 bool
	pages                bool // all of a list, page by page
}

func (q readsRequest) String() string {
	s := q.method + " " + q.path + " " + q.accept
	if q.gzip {
		s += " gzip"
	}
	if q.pages {
		s += " pages"
	}
	return s
}

// readsAnswer is what is compared.
type readsAnswer struct {
	Code                                          int
	ContentType, Encoding, Vary, RetryAfter, Body string
}

type readsServer struct {
	client    *http.Client
	host, now string // the newest version when the objects were copied
}

func (s readsServer) ask(t *testing.T, q readsRequest) ([]readsAnswer, error) {
	var all []readsAnswer
	more := ""
	for {
		a, next, err := s.once(t, q, more)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
		if !q.pages || next == "" || len(all) > 20 {
			return all, nil
		}
		more = "&continue=" + next
	}
}

var continues = regexp.MustCompile(`"continue":"([^"]+)"`)

func (s readsServer) once(t *testing.T, q readsRequest, more string) (a readsAnswer, next string, err error) {
	path := strings.ReplaceAll(q.path, "{now}", s.now) + more
	r, err := http.NewRequestWithContext(t.Context(), q.method, s.host+path, nil)
	if err != nil {
		return a, "", err
	}
	r.Header.Set("Accept", q.accept)
	r.Header.Set("User-Agent", "test")
	r.Header.Set("Accept-Encoding", "identity")
	if q.gzip {
		r.Header.Set("Accept-Encoding", "deflate, gzip")
	}
	response, err := s.client.Do(r)
	if err != nil {
		return a, "", err
	}
	defer response.Body.Close()
	h := response.Header
	a = readsAnswer{Code: response.StatusCode, ContentType: h.Get("Content-Type"), Encoding: h.Get("Content-Encoding"), Vary: h.Get("Vary"), RetryAfter: h.Get("Retry-After")}
	body := io.Reader(response.Body)
	if a.Encoding == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return a, "", err
		}
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return a, "", err
	}
	text, err := readable(a.ContentType, data)
	if found := continues.FindStringSubmatch(text); found != nil {
		next = found[1]
	}
	a.Body = masked(text)
	return a, next, err
}

func protobufSerializer() runtime.Serializer {
	info, ok := runtime.SerializerInfoForMediaType(kinds.Codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("there is no protobuf") // the table of media types has it
	}
	return info.Serializer
}

// readable makes JSON of protobuf.
func readable(contentType string, data []byte) (string, error) {
	asJSON := func(data []byte) (string, error) {
		o, kind, err := protobufSerializer().Decode(data, nil, nil)
		if err != nil {
			return "", fmt.Errorf("%w: %q", err, data[:min(80, len(data))])
		}
		text, err := json.Marshal(o)
		return kind.String() + " " + string(text), err
	}
	switch contentType {
	case runtime.ContentTypeProtobuf:
		return asJSON(data)
	case runtime.ContentTypeProtobuf + ";stream=watch":
		var lines []string
		for len(data) >= 4 {
			size := binary.BigEndian.Uint32(data)
			var event metav1.WatchEvent
			if err := event.Unmarshal(data[4 : 4+size]); err != nil {
				return "", err
			}
			text, err := asJSON(event.Object.Raw)
			if err != nil {
				return "", err
			}
			lines = append(lines, event.Type+" "+text)
			data = data[4+size:]
		}
		return strings.Join(lines, "\n"), nil
	}
	return string(bytes.ToValidUTF8(data, nil)), nil
}

// masks take out what must differ: versions, tokens, ages.
var masks = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`("?resourceVersion"?: ?)"[0-9]+"`), "${1}R"},
	{regexp.MustCompile(`("?continue"?: ?)"?[^"\s]+"?`), "${1}C"},
	{regexp.MustCompile(`"([0-9]+[dhms])+"`), `"AGE"`},
	{regexp.MustCompile(`(?m)^( *- )([0-9]+[dhms])+$`), "${1}AGE"},
	{regexp.MustCompile(`\(([0-9]+[dhms])+ ago\)`), "(AGE)"},
	{regexp.MustCompile(`current: [0-9]+`), "current: R"},
	{regexp.MustCompile(`(too old resource version: )[0-9]+ \([0-9]+\)`), "${1}R"},
	{regexp.MustCompile(`Too large resource version: [0-9]+`), "Too large resource version: R"},
}

// masked takes out besides what comes by the clock of a server: bookmarks, but for the one that
// ends a list.
func masked(text string) string {
	for _, m := range masks {
		text = m.what.ReplaceAllString(text, m.by)
	}
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return (strings.HasPrefix(line, "BOOKMARK ") || strings.HasPrefix(line, `{"type":"BOOKMARK"`)) && !strings.Contains(line, metav1.InitialEventsAnnotationKey)
	})
	return strings.Join(lines, "\n")
}

// listItems are the objects of a list.
func listItems(list runtime.Object) ([]kinds.Object, error) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	objects := make([]kinds.Object, 0, len(items))
	for _, o := range items {
		objects = append(objects, o.(kinds.Object))
	}
	return objects, nil
}

const (
	asTable       = "application/json;as=Table;g=meta.k8s.io;v=v1"
	asPartial     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asPartialList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// readsRequests are all questions.
func readsRequests() []readsRequest {
	var all []readsRequest
	add := func(accept string, paths ...string) {
		for _, p := range paths {
			all = append(all, readsRequest{method: http.MethodGet, path: p, accept: accept})
		}
	}
	for path, item := range readsPaths() {
		for _, accept := range readsAccepts {
			add(accept, path, path+"/"+item)
		}
		add(runtime.ContentTypeJSON, path+"/nope", path+"?limit=1", path+"?pretty=true", path+"?labelSelector=story%3Dnone")
		for _, f := range readsFields {
			add(runtime.ContentTypeJSON, path+"?fieldSelector="+url.QueryEscape(f))
		}
	}
	for _, path := range tablePaths {
		add(asTable, path, path+"?includeObject=None", path+"?includeObject=Object", path+"?includeObject=some", path+"?limit=1", path+"?watch=1&timeoutSeconds=1",
			path+"?watch=1&timeoutSeconds=1&includeObject=None&allowWatchBookmarks=1", path+"?watch=1&includeObject=some")
		add(strings.Replace(asTable, "json", "yaml", 1), path)
		add(strings.Replace(asTable, "json", "vnd.kubernetes.protobuf", 1), path)
	}
	const maps = "/api/v1/namespaces/" + readsOne + "/configmaps"
	for _, accept := range oddAccepts {
		add(accept, maps+"/m-0", maps, maps+"/nope")
	}
	for _, query := range readsQueries {
		add(runtime.ContentTypeJSON, maps+"?"+query, maps+"/m-1?"+query, "/api/v1/pods?"+query)
	}
	for _, query := range watchQueries {
		for _, accept := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, runtime.ContentTypeYAML, asPartial, strings.Replace(asPartial, "json", "vnd.kubernetes.protobuf", 1)} {
			add(accept, maps+"?watch=1&timeoutSeconds=1&"+query)
		}
		if !strings.HasPrefix(query, "resourceVersion=1&") { // the history of ours is that of the copying
			add(runtime.ContentTypeJSON, "/api/v1/configmaps?watch=1&timeoutSeconds=1&labelSelector=story&"+query)
		}
	}
	add(runtime.ContentTypeJSON, oddPaths...)
	for _, method := range []string{"HEAD", "OPTIONS", "BREW"} {
		all = append(all, readsRequest{method: method, path: maps, accept: runtime.ContentTypeJSON}, readsRequest{method: method, path: maps + "/m-0", accept: runtime.ContentTypeJSON})
	}
	for _, query := range []string{"?limit=2", "?limit=3&labelSelector=third-1", "?limit=100", "?limit=7", "?limit=2&fieldSelector=metadata.name!%3Dm-3"} {
		all = append(all, readsRequest{method: http.MethodGet, path: maps + query, accept: runtime.ContentTypeJSON, pages: true},
			readsRequest{method: http.MethodGet, path: "/api/v1/configmaps" + query, accept: runtime.ContentTypeJSON, pages: true})
	}
	for _, accept := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, "application/json;pretty=1"} {
		for _, path := range []string{"configmaps", "configmaps?labelSelector=large", "configmaps/large-0"} {
			all = append(all, readsRequest{method: http.MethodGet, path: "/api/v1/namespaces/" + readsTwo + "/" + path, accept: accept, gzip: true})
		}
	}
	return all
}
