package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/observe/stats"
	"berth/internal/record/events/messagestest"
)

type fakeStats struct{ err error }

func (f fakeStats) Summary(_ context.Context, scope stats.Scope) (*summary.Summary, error) {
	if f.err != nil {
		return nil, f.err
	}
	name := "full"
	if scope == stats.CPUAndMemory {
		name = "short"
	}
	return &summary.Summary{Node: summary.NodeStats{NodeName: name}, Pods: []summary.PodStats{}}, nil
}

func TestStatsSummary(t *testing.T) {
	tests := []struct {
		method, path, form string
		err                error
		status             int
		want               string
	}{
		{"GET", "/stats/summary", "", nil, 200, `"nodeName":"full"`},
		{"GET", "/stats/summary/", "", nil, 200, `"pods":[]`},
		{"GET", "/stats/summary?only_cpu_and_memory=true", "", nil, 200, `"nodeName":"short"`},
		{"GET", "/stats/summary?only_cpu_and_memory=false", "", nil, 200, `"nodeName":"full"`},
		{"GET", "/stats/summary?only_cpu_and_memory=true&only_cpu_and_memory=true", "", nil, 200, `"nodeName":"full"`},
		{"POST", "/stats/summary", "only_cpu_and_memory=true", nil, 200, `"nodeName":"short"`},
		{"PUT", "/stats/summary", "", nil, 405, "Method Not Allowed"},
		{"GET", "/stats/summary/x", "", nil, 404, "not found"},
		{"GET", "/stats/summary", "", errors.New("no disk"), 500, "Internal Error: no disk"},
	}
	for _, tt := range tests {
		s := statsHandlers{out: testResponder(), stats: fakeStats{tt.err}}
		mux := http.NewServeMux()
		s.route(mux)
		r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.form))
		if tt.form != "" {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		b, err := io.ReadAll(w.Result().Body)
		messagestest.Saw("http", strconv.Itoa(w.Code), string(b))
		if err != nil || w.Code != tt.status || !strings.Contains(string(b), tt.want) {
			t.Errorf("%s %s: %d %s, %v; want %d with %s", tt.method, tt.path, w.Code, b, err, tt.status, tt.want)
		}
	}
}
