package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/api/server"
	"berth/internal/host/preflight"
)

func TestCheckAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc // nil: no agent runs
		want   []preflight.Check
	}{
		"no agent":                     {nil, []preflight.Check{{Name: "agent", Result: preflight.OK, Found: "none runs on DIR"}}},
		"an agent without such a path": {http.NotFound, nil},
		"an agent that tells nothing":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }, nil},
		"an agent that does not answer": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) },
			[]preflight.Check{{Name: "agent", Result: preflight.Warn, Found: "does not answer", Consequence: "no"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.answer != nil {
				l, err := net.Listen("unix", server.SocketPath(dir))
				if err != nil {
					t.Fatal(err)
				}
				s := httptest.NewUnstartedServer(tt.answer)
				s.Listener = l
				s.Start()
				defer s.Close()
			}
			got := checkAgent(t.Context(), newClient(dir), now)
			if tt.answer == nil { // what else runs on this machine is not known
				got[0].Found, got[0].Consequence = strings.ReplaceAll(got[0].Found, dir, "DIR"), ""
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
