package server

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

type healthHandlers struct {
	out     *responder
	metrics *metrics
	health  Health
}

// routeLocal adds the conditions, and /healthz with the reason why the agent is not healthy.
func (h healthHandlers) routeLocal(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathHealth, func(w http.ResponseWriter, r *http.Request) { h.out.writeJSON(w, r, h.health.Conditions()) })
	mux.HandleFunc("GET "+PathHealthz, func(w http.ResponseWriter, r *http.Request) {
		if err := h.health.Check(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, err := io.WriteString(w, "ok")
		h.out.logAborted(r, err)
	})
}

func (h healthHandlers) kubeletChecks() []healthCheck {
	checks := []healthCheck{{"ping", healthy}, {"log", healthy}, {"syncloop", h.health.Check}}
	if h.health.DevicePlugins != nil {
		checks = append(checks, healthCheck{"device-plugin", h.health.DevicePlugins})
	}
	return checks
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
			h.out.writeText(w, r, "ok")
		})
	}
}

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
		h.out.writeText(w, r, list.String()+"healthz check passed\n")
	default:
		h.out.writeText(w, r, "ok")
	}
}
