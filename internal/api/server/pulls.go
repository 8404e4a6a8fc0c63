package server

import (
	"fmt"
	"slices"
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
	// Rate is how many bytes come a second, without those that were present before; 0 is not known.
	Rate int64 `json:"rate,omitempty"`
	// Last is when bytes came last, as far as the runtime says.
	Last *time.Time `json:"last,omitempty"`
}

// Rest returns how long the rest of the pull takes at its rate; 0 when that is not known.
func (p Pull) Rest() time.Duration {
	if p.Rate == 0 || p.Done >= p.Total {
		return 0
	}
	return time.Duration(float64(p.Total-p.Done) / float64(p.Rate) * float64(time.Second))
}

// PullAhead is a pull that others wait for.
type PullAhead struct {
	Image string    `json:"image"`
	Since time.Time `json:"since"`
	// Pods are those that it is for, as namespace/name; none when they are gone.
	Pods []string `json:"pods,omitempty"`
	// Rest is how long it takes at its rate, in nanoseconds; 0 when that is not known.
	Rest time.Duration `json:"rest,omitempty"`
}

// PullsOf returns those of the pulls that are for a pod.
func PullsOf(pulls []Pull, uid pod.UID) []Pull {
	var found []Pull
	for _, p := range pulls {
		if slices.Contains(p.Pods, uid) {
			found = append(found, p)
		}
	}
	return found
}

// PullMark is what stands behind the status of a pod with these pulls, "" for none: how much of the
// bytes that are known of has come.
func PullMark(pulls []Pull) string {
	if len(pulls) == 0 {
		return ""
	}
	var done, total int64
	waiting := true
	for _, p := range pulls {
		done, total, waiting = done+p.Done, total+p.Total, waiting && p.Since == nil
	}
	switch {
	case total > 0:
		return fmt.Sprintf(" (pulling %d%%)", 100*done/total)
	case waiting:
		return " (pull waits)"
	}
	return " (pulling)"
}
