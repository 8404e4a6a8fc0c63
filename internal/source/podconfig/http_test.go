package podconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/source/manifest"
	"berth/internal/source/manifest/manifesttest"
)

const podsURL = "https://example.com/pods.yaml"

// fakeWeb is a transport to servers that the test plays.
type fakeWeb struct {
	mu       sync.Mutex
	answer   func(*http.Request) (*http.Response, error) // guarded by mu
	requests []*http.Request                             // guarded by mu
	times    []time.Time                                 // guarded by mu
}

func (w *fakeWeb) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.requests = append(w.requests, r)
	w.times = append(w.times, time.Now())
	answer := w.answer
	w.mu.Unlock()
	return answer(r)
}

func (w *fakeWeb) say(answer func(*http.Request) (*http.Response, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

// last returns the newest request and how many there were.
func (w *fakeWeb) last() (*http.Request, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests[len(w.requests)-1], len(w.requests)
}

// intervals returns the whole seconds between the requests.
func (w *fakeWeb) intervals() (out []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(w.times); i++ {
		out = append(out, int(w.times[i].Sub(w.times[i-1]).Seconds()))
	}
	return out
}

// respond returns an answer; header holds names and values in turn.
func respond(status int, body string, header ...string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		h := http.Header{}
		for pair := range slices.Chunk(header, 2) {
			h.Add(pair[0], pair[1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r, ContentLength: int64(len(body))}, nil
	}
}

func breakWith(err error) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// running is a PodConfig that runs in a bubble.
type running struct {
	*PodConfig
	t    *testing.T
	stop func() // ends it, as the agent does
}

// startRunning starts a PodConfig. Its watcher has no events.
func startRunning(t *testing.T, cfg Config) *running {
	t.Helper()
	cfg.Watch = func() (Watcher, error) { return newFakeWatcher(), nil }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &running{PodConfig: c, t: t, stop: stop}
}

// after lets time pass and checks which operations there are then.
func (r *running) after(d time.Duration, want string) {
	r.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := ops(r.Take()); got != want {
		r.t.Errorf("operations: got %q, want %q", got, want)
	}
}

func (r *running) expectProblems(want string) {
	r.t.Helper()
	if got := messages(r.Problems()); got != want {
		r.t.Errorf("problems: got\n%s\nwant\n%s", got, want)
	}
}

func (r *running) expectSeen(want bool) {
	r.t.Helper()
	if got := r.SeenAllSources(); got != want {
		r.t.Errorf("seen all sources: got %v, want %v", got, want)
	}
}

func (r *running) pods() map[string]*v1.Pod {
	out := map[string]*v1.Pod{}
	for _, f := range r.feeds {
		for _, p := range f.delivered.pods {
			out[p.Name] = p.Pod
		}
	}
	return out
}

// webConfig reads podsURL, and what else is given, from the web.
func webConfig(w *fakeWeb, urls ...string) Config {
	cfg := newConfig(append([]string{podsURL}, urls...)...)
	cfg.Transport = w
	return cfg
}

func podList(names ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: PodList\nitems: []\n")
	if len(names) > 0 {
		b.Reset()
		b.WriteString("apiVersion: v1\nkind: PodList\nitems:\n")
	}
	for _, n := range names {
		fmt.Fprintf(&b, "- metadata: {name: %s}\n  spec: {containers: [{name: c, image: i}]}\n", n)
	}
	return b.String()
}

func TestHTTPPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWeb{answer: respond(200, manifesttest.Pod("a", "i"))}
		cfg := webConfig(w)
		cfg.Paths = []string{"https://user:secret@example.com/pods.yaml#part"}
		cfg.Names = manifest.MangleNames
		cfg.Header = http.Header{"x-token": {"t1", "t2"}, "Host": {"pods.internal"}}
		r := startRunning(t, cfg)
		r.expectSeen(false)
		r.after(0, "ADD default/a-node-1")
		r.expectSeen(true)

		req, _ := w.last()
		if user, password, _ := req.BasicAuth(); user != "user" || password != "secret" {
			t.Errorf("credentials of the URL: %s:%s", user, password)
		}
		if got := req.Header.Values("X-Token"); !slices.Equal(got, []string{"t1", "t2"}) || req.Host != "pods.internal" {
			t.Errorf("header %v, host %s", got, req.Host)
		}
		p := r.pods()["a-node-1"]
		want := map[string]string{
			pod.ConfigSourceAnnotation: "http", pod.ConfigHashAnnotation: string(p.UID), pod.ManifestAnnotation: podsURL,
			pod.ConfigSeenAnnotation: p.Annotations[pod.ConfigSeenAnnotation],
		}
		if diff := cmp.Diff(want, p.Annotations); diff != "" {
			t.Errorf("annotations (-want +got):\n%s", diff)
		}
		if len(p.Spec.Tolerations) > 0 {
			t.Errorf("tolerations %v: only pods from files tolerate all NoExecute taints", p.Spec.Tolerations)
		}
		file := manifest.Decoder{Node: node, Names: manifest.MangleNames}.Decode(manifest.Origin{Source: pod.FileSource, Path: podsURL}, []byte(manifesttest.Pod("a", "i")))
		if p.UID == file.Objects[0].GetUID() || len(p.UID) != 32 {
			t.Errorf("UID %s: a URL is no file", p.UID)
		}
	})
}

func TestHTTPChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWeb{answer: respond(200, podList("a", "b"), "ETag", `"1"`, "Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")}
		r := startRunning(t, webConfig(w))
		r.after(0, "ADD default/a default/b")
		if req, _ := w.last(); req.Header.Get("If-None-Match")+req.Header.Get("If-Modified-Since") != "" {
			t.Error("the first request is conditional")
		}
		before := r.feeds[0].newest.pods[0]

		w.say(respond(304, ""))
		r.after(defaultPoll, "")
		req, n := w.last()
		if req.Header.Get("If-None-Match") != `"1"` || req.Header.Get("If-Modified-Since") != "Mon, 01 Jan 2024 00:00:00 GMT" || n != 2 {
			t.Errorf("request %d has the header %v", n, req.Header)
		}
		w.say(respond(200, podList("a", "b")))
		r.after(defaultPoll, "")
		if r.feeds[0].newest.pods[0] != before {
			t.Error("the same answer was decoded again")
		}
		w.say(respond(200, podList("b", "c")))
		r.after(defaultPoll, "REMOVE default/a; ADD default/c")
		if req, _ := w.last(); req.Header.Get("If-None-Match") != "" {
			t.Error("a validator of an older answer was sent")
		}
		w.say(respond(200, strings.Replace(podList("b", "c"), "PodList", "List", 1)))
		r.after(defaultPoll, "")
		r.expectProblems(`pods.yaml error: kind: Required value: must be "Pod"; until this is mended the last good version stays: default/b, default/c` + "\n" +
			`pods.yaml error: kind: Required value: must be "Pod"`)
		w.say(respond(200, `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`))
		r.after(defaultPoll, "REMOVE default/b default/c; ADD default/j")
		w.say(respond(200, manifesttest.Pod("x", "i")+"---\n"+manifesttest.Pod("z", "i")))
		r.after(defaultPoll, "REMOVE default/j; ADD default/x default/z")
		w.say(respond(200, `{"apiVersion":"v1","kind":"PodList","items":null}`))
		r.after(defaultPoll, "REMOVE default/x default/z")
		r.expectProblems("")
	})
}

// TestHTTPBadAnswers holds for every answer but a valid one: pods stay, the problem is told, and an
// empty list ends them then.
func TestHTTPBadAnswers(t *testing.T) {
	const stays = "; until this is mended the last good version stays: default/a, default/b"
	for name, tt := range map[string]struct {
		answer  func(*http.Request) (*http.Response, error)
		problem string
	}{
		"server error":   {respond(503, "", "Retry-After", "1"), "cannot be read: the server answers with status 503 Service Unavailable" + stays},
		"own status":     {respond(599, ""), "cannot be read: the server answers with status 599" + stays},
		"not found":      {respond(404, podList()), "cannot be read: the server answers with status 404 Not Found" + stays},
		"no content":     {respond(204, ""), "cannot be read: the server answers with status 204 No Content" + stays},
		"partial":        {respond(206, podList()), "cannot be read: the server answers with status 206 Partial Content" + stays},
		"empty":          {respond(200, ""), "is empty: a manifest needs apiVersion, kind, metadata and spec" + stays},
		"blank":          {respond(200, " \n# nothing\n---\n"), "is empty: a manifest needs apiVersion, kind, metadata and spec" + stays},
		"page":           {respond(200, "<html>Sign in</html>", "Content-Type", "text/html; charset=utf-8"), "answers with an HTML page, not with a manifest: is there a URL of the file itself?" + stays},
		"text":           {respond(200, "Sign in"), "line 1: the document is a string, not an object with apiVersion, kind and metadata" + stays},
		"cut":            {respond(200, `{"apiVersion":"v1","kind":"PodList","items":[`), "invalid YAML: line 1: did not find expected node content" + stays},
		"no items":       {respond(200, `{"apiVersion":"v1","kind":"PodList"}`), "items: Required value: a list without pods has items: []" + stays},
		"items no list":  {respond(200, `{"apiVersion":"v1","kind":"PodList","items":{}}`), "items: Invalid value: must be a list, got an object" + stays},
		"too large":      {respond(200, strings.Repeat("#\n", maxManifest/2)+"#"), "cannot be read: the answer is larger than the limit of 10485760 bytes for a manifest" + stays},
		"redirect loop":  {respond(302, "", "Location", "/again"), "cannot be read: the server redirects more than 10 times" + stays},
		"less secure":    {respond(302, "", "Location", "http://example.com/"), "cannot be read: the server redirects from https to http, where anyone on the way can change the manifests" + stays},
		"refused":        {breakWith(&net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443}, Err: syscall.ECONNREFUSED}), "cannot be read: dial tcp 127.0.0.1:443: connection refused" + stays},
		"reset":          {breakWith(&net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: 4711}, Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443}, Err: syscall.ECONNRESET}), "cannot be read: read tcp 127.0.0.1:443: connection reset by peer" + stays},
		"unknown host":   {breakWith(&net.DNSError{Err: "no such host", Name: "example.com", Server: "10.0.0.1:53", IsNotFound: true}), "cannot be read: the host example.com is not known" + stays},
		"no name server": {breakWith(&net.DNSError{Err: "read udp 10.0.0.2:4711->10.0.0.1:53: i/o timeout", Name: "example.com", IsTimeout: true}), "cannot be read: the address of the host example.com cannot be looked up" + stays},
		"broken off": {func(r *http.Request) (*http.Response, error) {
			resp, err := respond(200, "")(r)
			resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(podList("a")), brokenReader{}))
			return resp, err
		}, "cannot be read: the connection ended before the answer was complete" + stays},
		"long words": {breakWith(errors.New(strings.Repeat("é", 1000))), "cannot be read: " + strings.Repeat("é", maxReason/2) + "…" + stays},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &fakeWeb{answer: respond(200, podList("a", "b"))}
				r := startRunning(t, webConfig(w))
				r.after(0, "ADD default/a default/b")
				w.say(tt.answer)
				r.after(defaultPoll, "")
				r.expectProblems("pods.yaml error: " + tt.problem)
				changed := r.ProblemsChanged()
				r.after(10*defaultPoll, "")
				select {
				case <-changed:
					t.Error("one problem is told again and again")
				default:
				}
				w.say(respond(200, podList("a", "b")))
				r.after(defaultPoll, "")
				r.expectProblems("")
				w.say(respond(200, podList()))
				r.after(defaultPoll, "REMOVE default/a default/b")
			})
		})
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestHTTPSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWeb{answer: hang}
		r := startRunning(t, webConfig(w))
		r.after(requestTimeout-time.Millisecond, "")
		r.expectProblems("")
		r.after(time.Millisecond, "")
		r.expectProblems("pods.yaml error: cannot be read: there is no complete answer within 10s")
		r.expectSeen(false)
		w.say(func(req *http.Request) (*http.Response, error) { // the body never ends
			resp, err := respond(200, "")(req)
			body, end := io.Pipe()
			context.AfterFunc(req.Context(), func() { end.CloseWithError(req.Context().Err()) })
			resp.Body = body
			return resp, err
		})
		r.after(2*requestTimeout, "")
		r.expectProblems("pods.yaml error: cannot be read: there is no complete answer within 10s")
		r.stop() // in the middle of a request
	})
}

func TestHTTPListWithABadItem(t *testing.T) {
	content := podList("a", "b") + "- metadata: {name: a b}\n  spec: {containers: [{name: c, image: i}]}\n"
	for _, tt := range []struct {
		names   manifest.NameRule
		first   string
		problem string // how it ends
		second  string // after a list with the pod old only
	}{
		{manifest.KeepNames, "ADD default/a default/b", `a-z0-9])?)*')`, "ADD default/a default/b"},
		{manifest.MangleNames, "ADD", "; nothing of the answer is taken", ""},
	} {
		t.Run(tt.names.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &fakeWeb{answer: respond(200, content)}
				cfg := webConfig(w)
				cfg.Names = tt.names
				r := startRunning(t, cfg)
				r.after(0, tt.first)
				got := r.Problems()
				if len(got) != 1 || !strings.HasPrefix(got[0].Message, "metadata.name: Invalid value") || !strings.HasSuffix(got[0].Message, tt.problem) {
					t.Errorf("problems: %v", got)
				}
				w.say(respond(200, podList("old")))
				time.Sleep(defaultPoll)
				synctest.Wait()
				r.Take()
				w.say(respond(200, content))
				r.after(defaultPoll, tt.second)
			})
		})
	}
}

func TestHTTPSeveralURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perHost := map[string]func(*http.Request) (*http.Response, error){
			"example.com": respond(200, podList("a", "same")), "b": hang, "c": respond(200, podList("same", "c")),
		}
		w := &fakeWeb{answer: func(r *http.Request) (*http.Response, error) { return perHost[r.URL.Host](r) }}
		r := startRunning(t, webConfig(w, "http://b/pods", "http://c/pods", podsURL))
		time.Sleep(time.Second)
		synctest.Wait()
		var names []string
		for _, u := range r.Take() {
			for _, p := range u.Pods {
				names = append(names, u.Op.String()+" "+p.Name)
			}
		}
		if diff := cmp.Diff([]string{"ADD a", "ADD same", "ADD c"}, names); diff != "" {
			t.Errorf("one server that hangs holds up others (-want +got):\n%s", diff)
		}
		r.expectSeen(false)
		if got := messages(r.Problems()); !strings.Contains(got, "pod default/same stands in https://example.com/pods.yaml already") {
			t.Errorf("problems: %s", got)
		}
		if _, n := w.last(); n != 3 {
			t.Errorf("%d requests: the URL that is given twice counts once", n)
		}
	})
}

func TestHTTPIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWeb{answer: respond(500, "")}
		r := startRunning(t, webConfig(w))
		r.after(72*time.Second, "")
		w.say(respond(200, podList()))
		r.after(45*time.Second, "ADD")
		w.say(respond(429, "", "Retry-After", "70"))
		r.after(95*time.Second, "")
		w.say(respond(503, "", "Retry-After", "86400"))
		r.after(170*time.Second, "")
		if diff := cmp.Diff([]int{1, 2, 4, 8, 16, 20, 20, 20, 20, 20, 70, 70, 100}, w.intervals()); diff != "" {
			t.Errorf("seconds between requests (-want +got):\n%s", diff)
		}
	})
}

func TestNextRequest(t *testing.T) {
	for _, tt := range []struct {
		period   time.Duration
		failures int
		patience time.Duration
		want     time.Duration
	}{
		{20 * time.Second, 0, time.Hour, 20 * time.Second},
		{20 * time.Second, 1, 0, time.Second},
		{20 * time.Second, 1000, 0, 20 * time.Second},
		{20 * time.Second, 1, 10 * time.Second, 10 * time.Second},
		{20 * time.Second, 1, time.Hour, 100 * time.Second},
		{10 * time.Millisecond, 1, 0, time.Second},
		{10 * time.Millisecond, 9, time.Hour, 5 * time.Second},
		{time.Hour, 1000, 0, time.Hour},
	} {
		if got := nextRequest(tt.period, tt.failures, tt.patience); got != tt.want {
			t.Errorf("period %v, %d failures, patience %v: got %v, want %v", tt.period, tt.failures, tt.patience, got, tt.want)
		}
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, "-1": 0, "soon": 0, "99999999999": 0,
		"Wed, 01 May 2024 12:01:00 GMT": time.Minute, "Wed, 01 May 2024 11:00:00 GMT": 0,
	} {
		if got := parseRetryAfter(value, now); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

func TestHTTPFailuresAreLoggedThreeTimesWithoutSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &fakeWeb{answer: breakWith(errors.New("no luck"))}
		cfg := webConfig(w)
		cfg.Paths = []string{"https://user:hunter2@example.com/pods.yaml"}
		cfg.Header = http.Header{"Authorization": {"Bearer hunter2"}}
		cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r := startRunning(t, cfg)
		r.after(time.Minute, "")
		w.say(respond(200, podList("a")))
		r.after(time.Minute, "ADD default/a")
		r.stop()
		text := log.String()
		levels := map[string]int{}
		for line := range strings.Lines(text) {
			_, rest, _ := strings.Cut(line, "level=")
			level, _, _ := strings.Cut(rest, " ")
			levels[level]++
		}
		if diff := cmp.Diff(map[string]int{"WARN": 3, "DEBUG": 4, "INFO": 1}, levels); diff != "" {
			t.Errorf("lines by level (-want +got):\n%s\n%s", diff, text)
		}
		if strings.Contains(text, "hunter2") || !strings.Contains(text, podsURL) {
			t.Errorf("log: %s", text)
		}
		if got := fmt.Sprint(r.Problems(), r.pods()); strings.Contains(got, "hunter2") {
			t.Errorf("secrets are shown: %s", got)
		}
	})
}

func TestHTTPRedirects(t *testing.T) {
	for name, tt := range map[string]struct {
		location string
		token    string
	}{
		"same host":    {"/other", "t"},
		"other port":   {"https://example.com:8443/other", "t"},
		"another host": {"https://elsewhere.example.com/other", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &fakeWeb{answer: func(r *http.Request) (*http.Response, error) {
					if r.URL.Path == "/other" {
						return respond(200, podList("a"))(r)
					}
					return respond(307, "", "Location", tt.location)(r)
				}}
				cfg := webConfig(w)
				cfg.Header = http.Header{"X-Token": {"t"}}
				r := startRunning(t, cfg)
				r.after(0, "ADD default/a")
				req, _ := w.last()
				if got := req.Header.Get("X-Token"); got != tt.token {
					t.Errorf("token %q, want %q", got, tt.token)
				}
				if got := r.pods()["a"].Annotations[pod.ManifestAnnotation]; got != podsURL {
					t.Errorf("manifest %s", got)
				}
			})
		})
	}
}

func TestPathsThatAreNoURLs(t *testing.T) {
	for given, want := range map[string]string{
		"ftp://u:hunter2@host/x": `pod config: "ftp://***@host/x": manifests are read from files, folders, http:// and https:// URLs, not ftp://`,
		"http://u:hun/ter2@host": `pod config: "http://***@host" is no URL: write https://host/path`,
		"https:///x":             `pod config: "https:///x" is no URL: write https://host/path`,
		"://x":                   `pod config: "://x" is no URL: write https://host/path`,
	} {
		if _, err := New(newConfig(given)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", given, err, want)
		}
	}
	for want, header := range map[string]http.Header{
		`pod config: header "a b": this is no name of a header`:                                        {"a b": {"x"}},
		"pod config: header X-Token: a value has characters that cannot be sent, such as a line break": {"X-Token": {"hunter2\n"}},
	} {
		cfg := newConfig(podsURL)
		cfg.Header = header
		if _, err := New(cfg); err == nil || err.Error() != want {
			t.Errorf("%v: got %v", slices.Collect(maps.Keys(header)), err)
		}
	}
}
