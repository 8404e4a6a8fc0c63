package server

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"
)

// testResponder answers one stream at a time.
func testResponder() *responder {
	return &responder{name: "test", streams: semaphore.NewWeighted(1), log: slog.New(slog.DiscardHandler)}
}

func debugMux(dbg Debug) *http.ServeMux {
	d := debugHandlers{testResponder(), dbg}
	mux := http.NewServeMux()
	d.route(mux)
	return mux
}

func TestProfiles(t *testing.T) {
	mux := debugMux(Debug{Profiling: true})
	for path, want := range map[string]string{
		"":                  "Types of profiles available",
		"goroutine?debug=1": "goroutine profile: total",
		"cmdline":           "server.test",
		"symbol":            "num_symbols: 1",
	} {
		if w := get(mux, PathProfiles+"/"+path); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %.200s", path, w.Code, w.Body)
		}
	}
	for _, seconds := range []string{"0", "-1", "301", "1e9", "NaN", "x"} {
		if w := get(mux, PathProfiles+"/profile?seconds="+seconds); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "seconds: ") {
			t.Errorf("seconds=%s: %d %s", seconds, w.Code, w.Body)
		}
	}
}

func TestDebugDisabled(t *testing.T) {
	mux := debugMux(Debug{})
	for path, want := range map[string]string{
		PathProfiles: "profiling endpoint is disabled.\n", PathProfiles + "/heap": "profiling endpoint is disabled.\n", PathVerbosity: "flags endpoint is disabled.\n",
	} {
		if w := get(mux, path); w.Code != http.StatusMethodNotAllowed || w.Body.String() != want {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
}

func TestVerbosity(t *testing.T) {
	var set []uint32
	mux := debugMux(Debug{SetVerbosity: func(v uint32) { set = append(set, v) }})
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{"5", 200, "successfully set klog.logging.verbosity to 5"},
		{" 0\n", 200, "successfully set klog.logging.verbosity to 0"},
		{"", 400, `body: "" is not a level`},
		{"-1", 400, `body: "-1" is not a level`},
		{"4294967296", 400, "is not a level"},
		{"debug", 400, "is not a level"},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPut, PathVerbosity, strings.NewReader(c.body)))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%q: %d %q", c.body, w.Code, w.Body)
		}
	}
	if len(set) != 2 || set[0] != 5 || set[1] != 0 {
		t.Errorf("set to %v", set)
	}
}
