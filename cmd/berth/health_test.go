package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/api/server"
	"berth/internal/runtime/embedded"
)

func TestCheckAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc // nil: no agent runs
		want   []embedded.HostCheck
	}{
		"no agent":                     {nil, nil},
		"an agent without such a path": {http.NotFound, nil},
		"an agent that tells nothing":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }, nil},
		"an agent that does not answer": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) },
			[]embedded.HostCheck{{Name: "agent", Result: embedded.Warn, Found: "does not answer", Consequence: "no"}},
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
			if diff := cmp.Diff(tt.want, checkAgent(t.Context(), newClient(dir), now)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
