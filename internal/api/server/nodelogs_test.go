package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"

	"berth/internal/api/nodelogs"
	"berth/internal/record/events/messagestest"
)

// nodeLogsDoor serves a log folder with a few files, beside one that must not be read.
func nodeLogsDoor(t testing.TB, query bool, script string) (http.Handler, string) {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "log")
	for name, text := range map[string]string{
		"secret": "secret\n", "log/a.log": "one\ntwo\nthree\n", "log/sub/b<c>:.log": "sub\n", "log/page.html": "<script>x</script>\n", "log/wtmp": "\x00\x01\x02", "log/empty/x": "x",
	} {
		path := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	journalctl := filepath.Join(top, "journalctl")
	if script != "" {
		if err := os.WriteFile(journalctl, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	n := nodeLogHandlers{
		testResponder(),
		NodeLogs{Logs: &nodelogs.Logs{Dir: dir, Journalctl: journalctl}, Query: query},
		semaphore.NewWeighted(maxLogQueries),
	}
	mux := http.NewServeMux()
	n.route(mux)
	return asServed(mux), dir
}

func get(mux http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	messagestest.Saw("http", strconv.Itoa(w.Code), w.Body.String())
	return w
}

func TestNodeFiles(t *testing.T) {
	mux, _ := nodeLogsDoor(t, false, "")
	const list = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n%s</pre>\n"
	for _, c := range []struct {
		path   string
		code   int
		kind   string // Content-Type
		body   string
		header []string
	}{
		{"/logs/a.log", 200, "text/plain; charset=utf-8", "one\ntwo\nthree\n", nil},
		{"/logs/a.log", 206, "text/plain; charset=utf-8", "two\n", []string{"Range", "bytes=4-7"}},
		{"/logs/page.html", 200, "text/plain; charset=utf-8", "<script>x</script>\n", nil},
		{"/logs/wtmp", 200, "application/octet-stream", "\x00\x01\x02", nil},
		{"/logs/sub/b%3Cc%3E:.log", 200, "text/plain; charset=utf-8", "sub\n", nil},
		{"/logs/sub/", 200, "text/html; charset=utf-8", fmt.Sprintf(list, "<a href=\"./b%3Cc%3E:.log\">b&lt;c&gt;:.log</a>\n"), nil},
		{
			"/logs/", 200, "text/html; charset=utf-8",
			fmt.Sprintf(list, "<a href=\"a.log\">a.log</a>\n<a href=\"empty/\">empty/</a>\n<a href=\"page.html\">page.html</a>\n<a href=\"sub/\">sub/</a>\n<a href=\"wtmp\">wtmp</a>\n"), nil,
		},
		{"/logs/sub", 200, "text/html; charset=utf-8", fmt.Sprintf(list, "<a href=\"sub/b%3Cc%3E:.log\">b&lt;c&gt;:.log</a>\n"), nil},
		{"/logs/a.log/", 404, "text/plain; charset=utf-8", "404 page not found\n", nil},
		{"/logs/nothing", 404, "text/plain; charset=utf-8", "404 page not found\n", nil},
		{"/logs/%2e%2e/secret", 404, "text/plain; charset=utf-8", "404 page not found\n", nil},
		{"/logs/?query=a;b", 400, "text/plain; charset=utf-8", "query: invalid semicolon separator in query\n", nil},
		{"/logs/?query=a.log", 405, "text/plain; charset=utf-8", "node log query is disabled: it needs enableSystemLogQuery: true\n", nil},
	} {
		w := get(mux, c.path, c.header...)
		if w.Code != c.code || w.Header().Get("Content-Type") != c.kind || w.Body.String() != c.body {
			t.Errorf("%s: %d, %q, %q; want %d, %q, %q", c.path, w.Code, w.Header().Get("Content-Type"), w.Body, c.code, c.kind, c.body)
		}
	}
}

func TestNodeLogQuery(t *testing.T) {
	for _, c := range []struct {
		name, script, path string
		code               int
		body, trailer      string
	}{
		{"a file", "", "?query=/a.log&tailLines=1", 200, "three\n", ""},
		{"a service's file", "", "?query=a&pattern=t", 200, "two\nthree\n", ""},
		{"the journal", "echo logged", "?query=kubelet", 200, "logged\n", ""},
		{"what is in neither", "", "?query=kubelet", 404, `service "kubelet": not in the journal`, ""},
		{"a file's time", "", "?query=a&boot=0", 406, "it logs to a file", ""},
		{"a pattern that is none", "", "?query=/a.log&pattern=(", 406, "missing closing )", ""},
		{"a journal that breaks off", `case "$*" in *lines=1) echo some;; *) echo begin; echo broken >&2; exit 2;; esac`, "?query=kubelet", 200, "begin\n", "journalctl: exit status 2: broken"},
		{"a journal that cannot be read", "echo broken >&2; exit 2", "?query=kubelet", 500, "journalctl: exit status 2: broken", ""},
		{"an answer that is not understood", "", "?query=a&boot=x", 400, "boot: ", ""},
		{"no service", "", "?query=", 406, "is no name of a service", ""},
		{"a path too", "", "sub?query=a", 406, "cannot be asked for together", ""},
	} {
		mux, _ := nodeLogsDoor(t, true, c.script)
		w := get(mux, "/logs/"+c.path)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.body) || (c.code == 200 && w.Body.String() != c.body) {
			t.Errorf("%s: %d %q, want %d %q", c.name, w.Code, w.Body, c.code, c.body)
		}
		if got := w.Result().Trailer.Get(LogErrorTrailer); got != c.trailer {
			t.Errorf("%s: the trailer says %q, want %q", c.name, got, c.trailer)
		}
	}
}

// A folder with more names than anybody reads does not fill the memory.
func TestLargeFolder(t *testing.T) {
	mux, dir := nodeLogsDoor(t, false, "")
	for i := range maxListed + 1 {
		if err := os.Symlink("nothing", filepath.Join(dir, "empty", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	w := get(mux, "/logs/empty/")
	if n := strings.Count(w.Body.String(), "<a "); n != maxListed || !strings.Contains(w.Body.String(), "only the first 10000 are shown") {
		t.Errorf("%d names are listed", n)
	}
}

func TestNodeLogsDisabled(t *testing.T) {
	mux := http.NewServeMux()
	nodeLogHandlers{}.route(mux)
	for _, path := range []string{"/logs/", "/logs/a.log", "/logs/?query=a"} {
		if w := get(mux, path); w.Code != http.StatusMethodNotAllowed || w.Body.String() != "logs endpoint is disabled.\n" {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
}

// So many queries at a time, and no more: each may be a process.
func TestNodeLogQueriesAreBounded(t *testing.T) {
	mux, dir := nodeLogsDoor(t, true, "echo logged")
	full := semaphore.NewWeighted(maxLogQueries)
	full.TryAcquire(maxLogQueries)
	n := nodeLogHandlers{testResponder(), NodeLogs{Logs: &nodelogs.Logs{Dir: dir}}, full}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/logs/?query=a", nil)
	n.queryNodeLogs(w, r, r.URL.Query())
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("one query too many: %d %q", w.Code, w.Body)
	}
	if w := get(mux, "/logs/?query=kubelet"); w.Code != http.StatusOK {
		t.Errorf("one query: %d %q", w.Code, w.Body)
	}
}

// FuzzNodeLogs asks for anything: the answer is from the log folder, or says what is wrong.
func FuzzNodeLogs(f *testing.F) {
	for _, s := range [][2]string{
		{"", ""},
		{"a.log", ""},
		{"sub/", ""},
		{"../secret", ""},
		{"..%2fsecret", ""},
		{"%2e%2e/secret", ""},
		{"sub/%2e%2e/%2e%2e/secret", ""},
		{"a.log%00", ""},
		{"", "query=a"},
		{"", "query=/a.log&tailLines=1&pattern=t"},
		{"", "query=/../secret"},
		{"", "query=/..%2fsecret"},
		{"", "query=..%2fsecret"},
		{"", "query=.."},
		{"", "query=a&query=/a.log"},
		{"", "query=a&boot=1"},
		{"", "query=/a.log&pattern=("},
		{"", "query=/a.log&pattern=%5cQ&tailLines=100000"},
		{"", "tailLines=1"},
		{"x", "query=a;b"},
	} {
		f.Add(s[0], s[1])
	}
	mux, _ := nodeLogsDoor(f, true, "")
	f.Fuzz(func(t *testing.T, name, query string) {
		r := httptest.NewRequest(http.MethodGet, PathNodeLogs+"/", nil)
		r.URL.Path, r.URL.RawQuery = PathNodeLogs+"/"+name, query
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		body, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		switch w.Code {
		case 200, 400, 404, 406:
		default:
			t.Fatalf("%q?%q is answered with %d: %s", name, query, w.Code, body)
		}
		if w.Code == 200 && strings.Contains(string(body), "secret\n") {
			t.Errorf("%q?%q shows the secret", name, query)
		}
		if w.Code >= 400 && len(body) == 0 {
			t.Errorf("%q?%q is refused with %d and no word", name, query, w.Code)
		}
	})
}
