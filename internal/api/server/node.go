package server

import (
	"errors"
	"net/http"
	"time"
)

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

// nodeHandlers report the resources of the node, and open views of it.
type nodeHandlers struct {
	out        *responder
	thresholds Thresholds
	resources  Resources
	view       View
}

func (n nodeHandlers) route(mux *http.ServeMux) {
	if n.thresholds != nil {
		mux.HandleFunc("GET "+PathThresholds, func(w http.ResponseWriter, r *http.Request) { n.out.writeJSON(w, r, n.thresholds()) })
	}
	if n.resources != nil {
		mux.HandleFunc("GET "+PathResources, func(w http.ResponseWriter, r *http.Request) { n.out.writeJSON(w, r, n.resources()) })
	}
	if n.view != nil {
		mux.HandleFunc("POST "+PathView, n.postView)
	}
}

// ErrLocalAPI is returned if the machine has a local API, which shows more than a view.
var ErrLocalAPI = errors.New("there is a local API")

func (n nodeHandlers) postView(w http.ResponseWriter, r *http.Request) {
	err := n.view(r.Context())
	switch {
	case errors.Is(err, ErrLocalAPI):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
