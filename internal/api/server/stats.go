package server

import (
	"net/http"

	"berth/internal/observe/stats"
)

// statsHandlers serve the resource usage of pods and node.
type statsHandlers struct {
	out     *responder
	stats   Stats // nil: the paths do not exist
	scrapes map[string]http.Handler
}

// route adds the summary and the Prometheus paths, if available. The methods are the kubelet's.
func (s statsHandlers) route(mux *http.ServeMux) {
	for path, h := range s.scrapes {
		mux.Handle("GET "+path, h)
	}
	if s.stats == nil {
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		mux.HandleFunc(method+" "+PathStatsSummary, s.getSummary)
		mux.HandleFunc(method+" "+PathStatsSummary+"/{$}", s.getSummary)
	}
}

// getSummary returns the resource usage of pods and node. Only the single value "true", in the
// query or a form, selects the short form.
func (s statsHandlers) getSummary(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the query or form cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	scope := stats.Full
	if v := r.Form["only_cpu_and_memory"]; len(v) == 1 && v[0] == "true" {
		scope = stats.CPUAndMemory
	}
	sum, err := s.stats.Summary(r.Context(), scope)
	if err != nil {
		s.out.log.Warn("summary of use failed", "error", err)
		http.Error(w, "Internal Error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	s.out.writeJSON(w, r, sum)
}
