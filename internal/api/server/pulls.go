package server

import (
	"context"
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
	// Rate is how many bytes came a second over RateWindow; nil when it was not measured.
	Rate *int64 `json:"rate,omitempty"`
}

// RateWindow is the time over which the rate of pulls is measured for an explanation, which takes
// so much longer while an image is being downloaded.
const RateWindow = 2 * time.Second

// measuredPulls returns the pulls under way, those whose bytes are known with their rates.
func measuredPulls(ctx context.Context, list func(context.Context) []Pull) []Pull {
	before := list(ctx)
	if !slices.ContainsFunc(before, func(p Pull) bool { return p.Done < p.Total }) {
		return before
	}
	began := time.Now()
	timer := time.NewTimer(RateWindow)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return before
	}
	return computeRates(before, list(ctx), time.Since(began))
}

// computeRates returns the pulls of now with the rates at which they went on in the time since
// before. A pull that waits gets what is known of the one that it waits for.
func computeRates(before, now []Pull, took time.Duration) []Pull {
	out := slices.Clone(now)
	for i := range out {
		p := &out[i]
		was := slices.IndexFunc(before, func(b Pull) bool { return b.Image == p.Image && b.Total == p.Total })
		if p.Total > 0 && was >= 0 && took > 0 {
			rate := int64(float64(max(0, p.Done-before[was].Done)) / took.Seconds())
			p.Rate = &rate
		}
	}
	for i := range out {
		if out[i].Behind == nil {
			continue
		}
		first := slices.IndexFunc(out, func(p Pull) bool { return p.Image == out[i].Behind.Image && p.Since != nil })
		if first >= 0 {
			behind := *out[i].Behind
			behind.Rest = out[first].Rest()
			out[i].Behind = &behind
		}
	}
	return out
}

// Rest returns how long the rest of the pull takes at its rate; 0 when that is not known.
func (p Pull) Rest() time.Duration {
	if p.Rate == nil || *p.Rate == 0 || p.Done >= p.Total {
		return 0
	}
	return time.Duration(float64(p.Total-p.Done) / float64(*p.Rate) * float64(time.Second))
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
