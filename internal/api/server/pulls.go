package server

import (
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
	// Behind is what it waits for, nil when the registry was asked: of the pulls under way the one
	// that began first.
	Behind *PullAhead `json:"behind,omitempty"`
	// Place is its place among those that wait for their turns, 1 for the next; AtOnce is how many
	// pulls run at one time, 0 without a bound.
	Place  int `json:"place,omitempty"`
	AtOnce int `json:"atOnce,omitempty"`
	// Done and Total are in bytes; Total 0 is not known: the runtime does not say, or not yet.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
}

// PullAhead is a pull that others wait for.
type PullAhead struct {
	Image string    `json:"image"`
	Since time.Time `json:"since"`
	// Pods are those that it is for, as namespace/name; none when they are gone.
	Pods []string `json:"pods,omitempty"`
}
