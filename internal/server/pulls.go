package server

import (
	"net/http"
	"time"

	"berth/internal/pod"
)

// Pull is a pull under way, an item of the answer of PathPulls.
type Pull struct {
	Image string `json:"image"`
	// Pods are those that it is for, by UID.
	Pods []pod.UID `json:"pods"`
	// Ahead: no container waits for it yet.
	Ahead bool `json:"ahead,omitempty"`
	// Since is when the registry was asked; nil while other pulls have their turns.
	Since *time.Time `json:"since,omitempty"`
	// Done and Total are in bytes; Total 0 is not known: the runtime does not tell, or not yet.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
}

func (d *door) getPulls(w http.ResponseWriter, r *http.Request) {
	pulls := d.h.Pulls(r.Context())
	if pulls == nil {
		pulls = []Pull{} // a list, not null
	}
	d.writeJSON(w, r, pulls)
}
