package server

import (
	"net/http"

	"berth/internal/stats"
)

// routeStats adds what tells of use and what Prometheus scrapes, if the agent can. The methods are the kubelet's.
func (d *door) routeStats(mux *http.ServeMux) {
	for path, h := range d.scrapes {
		mux.Handle("GET "+path, h)
	}
	if d.h.Stats == nil {
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		mux.HandleFunc(method+" "+PathStatsSummary, d.getSummary)
		mux.HandleFunc(method+" "+PathStatsSummary+"/{$}", d.getSummary)
	}
}

// getSummary answers with what pods and node use. Only the one value "true", in the query or in a form, asks for the short answer.
func (d *door) getSummary(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the query or form cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	scope := stats.Full
	if v := r.Form["only_cpu_and_memory"]; len(v) == 1 && v[0] == "true" {
		scope = stats.CPUAndMemory
	}
	s, err := d.h.Stats.Summary(r.Context(), scope)
	if err != nil {
		d.log.Warn("summary of use failed", "error", err)
		http.Error(w, "Internal Error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	d.writeJSON(w, r, s)
}
