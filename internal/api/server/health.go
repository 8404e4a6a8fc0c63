package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// healthHandlers report the agent's health.
type healthHandlers struct {
	*answerer
	metrics *metrics
}

// healthCheck is one of the checks behind /healthz.
type healthCheck struct {
	name  string
	check func() error
}

// healthy is a check that always succeeds. Log records are written synchronously, so there is no
// queue to check.
func healthy() error { return nil }

// route adds /healthz over all checks and /healthz/{name} for each.
func (h healthHandlers) route(mux *http.ServeMux, checks ...healthCheck) {
	mux.HandleFunc("GET "+PathHealthz, func(w http.ResponseWriter, r *http.Request) { h.writeHealth(w, r, checks) })
	for _, c := range checks {
		mux.HandleFunc("GET "+PathHealthz+"/"+c.name, func(w http.ResponseWriter, r *http.Request) {
			if err := h.check(c); err != nil {
				http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
				return
			}
			h.writeText(w, r, "ok")
		})
	}
}

// check runs the check and counts its result.
func (h healthHandlers) check(c healthCheck) error {
	err := c.check()
	h.metrics.checked(c.name, err)
	return err
}

// writeHealth responds in the form of all Kubernetes components: ok, or the failed checks. The
// reasons are only at the path of each check. The query is that of the Kubernetes documentation,
// "Kubernetes API health endpoints": ?verbose lists all checks, ?exclude=NAME skips one.
func (h healthHandlers) writeHealth(w http.ResponseWriter, r *http.Request, checks []healthCheck) {
	var list strings.Builder
	failed, query := false, r.URL.Query()
	for _, c := range checks {
		if slices.Contains(query["exclude"], c.name) {
			fmt.Fprintf(&list, "[+]%s excluded: ok\n", c.name)
			continue
		}
		if err := h.check(c); err != nil {
			failed = true
			fmt.Fprintf(&list, "[-]%s failed: reason withheld\n", c.name)
			continue
		}
		fmt.Fprintf(&list, "[+]%s ok\n", c.name)
	}
	_, verbose := query["verbose"]
	switch {
	case failed:
		http.Error(w, list.String()+"healthz check failed", http.StatusInternalServerError)
	case verbose:
		h.writeText(w, r, list.String()+"healthz check passed\n")
	default:
		h.writeText(w, r, "ok")
	}
}
