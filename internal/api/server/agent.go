package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"berth/internal/source/manifest"
)

// agentHandlers report the agent's identity, configuration and state, and accept stop requests.
type agentHandlers struct {
	*answerer
	h *Handlers
}

// route adds the paths of the local API; the kubelet's ports serve a few of them under other names.
func (a agentHandlers) route(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathVersion, a.getVersion)
	mux.HandleFunc("GET "+PathProblems, a.getProblems)
	mux.HandleFunc("GET "+PathSettings, a.getSettings)
	if a.h.Pulls != nil {
		mux.HandleFunc("GET "+PathPulls, a.getPulls)
	}
	if a.h.Node != nil {
		mux.HandleFunc("GET "+PathNode, a.getNode)
	}
	if a.h.Health != nil {
		mux.HandleFunc("GET "+PathHealth, a.getHealth)
	}
	if a.h.Thresholds != nil {
		mux.HandleFunc("GET "+PathThresholds, a.getThresholds)
	}
	if a.h.Resources != nil {
		mux.HandleFunc("GET "+PathResources, a.getResources)
	}
	if a.h.OpenView != nil {
		mux.HandleFunc("POST "+PathView, a.postView)
	}
	mux.HandleFunc("POST "+PathStop, a.postStop)
}

func (a agentHandlers) getHealth(w http.ResponseWriter, r *http.Request) {
	a.writeJSON(w, r, a.h.Health())
}

// getResources returns the resource assignments of the node.
func (a agentHandlers) getResources(w http.ResponseWriter, r *http.Request) {
	a.writeJSON(w, r, a.h.Resources())
}

// Threshold is an eviction threshold and its state. Amounts are bytes, inodes or tasks, depending
// on the signal.
type Threshold struct {
	// Signal and Value are as in the configuration: nodefs.available, 10%.
	Signal string `json:"signal"`
	Value  string `json:"value"`
	// GraceSeconds is how long a soft threshold must be met before a pod is evicted; 0 for a hard
	// threshold.
	GraceSeconds float64 `json:"graceSeconds,omitempty"`
	// Least is the required minimum; Available of Capacity is left. All are 0 if unknown.
	Least     uint64 `json:"least"`
	Available uint64 `json:"available"`
	Capacity  uint64 `json:"capacity"`
	// MetSince is since when the threshold is met; nil if it is not met.
	MetSince *time.Time `json:"metSince,omitempty"`
	// Ignored thresholds are configured and have no effect.
	Ignored bool `json:"ignored,omitempty"`
}

func (a agentHandlers) getThresholds(w http.ResponseWriter, r *http.Request) {
	a.writeJSON(w, r, a.h.Thresholds())
}

func (a agentHandlers) getHealthz(w http.ResponseWriter, r *http.Request) {
	if err := a.h.Healthz(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, "ok")
	a.ended(r, err)
}

func (a agentHandlers) getVersion(w http.ResponseWriter, r *http.Request) {
	a.writeJSON(w, r, a.h.Version())
}

func (a agentHandlers) getProblems(w http.ResponseWriter, r *http.Request) {
	problems := a.h.Problems()
	if problems == nil {
		problems = []manifest.Problem{} // an empty list, not null
	}
	a.writeJSON(w, r, problems)
}

func (a agentHandlers) getSettings(w http.ResponseWriter, r *http.Request) {
	if a.h.Settings == nil {
		http.NotFound(w, r)
		return
	}
	settings, err := a.h.Settings()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case settings == nil:
		http.Error(w, `the agent has no KubeletConfiguration: it was started with "berth run"`, http.StatusNotFound)
	default:
		a.writeJSON(w, r, settings)
	}
}

// readBody decodes the body of a request, or responds with an error and returns false.
func readBody(w http.ResponseWriter, r *http.Request, into any, expected string) (ok bool) {
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	err := body.Decode(into)
	if err == nil || errors.Is(err, io.EOF) { // no body means the defaults
		return true
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
		return false
	}
	http.Error(w, fmt.Sprintf("body: %v; expected %s", err, expected), http.StatusBadRequest)
	return false
}

// postStop accepts a stop request. The response is written before the agent closes this server.
func (a agentHandlers) postStop(w http.ResponseWriter, r *http.Request) {
	var req StopRequest
	if !readBody(w, r, &req, `{"all": true} or {"all": false}`) {
		return
	}
	scope := StopAgent
	if req.All {
		scope = StopAll
	}
	a.log.Info("asked to stop", "scope", scope.String())
	a.h.Stop(scope)
	w.WriteHeader(http.StatusAccepted)
}

// ErrLocalAPI is returned if the machine has a local API, which shows more than a view.
var ErrLocalAPI = errors.New("there is a local API")

// postView opens a view of the node.
func (a agentHandlers) postView(w http.ResponseWriter, r *http.Request) {
	err := a.h.OpenView(r.Context())
	switch {
	case errors.Is(err, ErrLocalAPI):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// getNode returns the Node from the API server, or its stand-in without one.
func (a agentHandlers) getNode(w http.ResponseWriter, r *http.Request) {
	n, err := a.h.Node(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	a.writeJSON(w, r, n)
}

func (a agentHandlers) getPulls(w http.ResponseWriter, r *http.Request) {
	pulls := a.h.Pulls(r.Context())
	if pulls == nil {
		pulls = []Pull{} // a list, not null
	}
	a.writeJSON(w, r, pulls)
}

func (a agentHandlers) getConfigz(w http.ResponseWriter, r *http.Request) {
	a.writeJSON(w, r, map[string]any{"kubeletconfig": a.h.Configz()})
}
