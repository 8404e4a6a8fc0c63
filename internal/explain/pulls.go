package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/pod"
)

// Pull is a current image pull.
type Pull struct {
	Image string `json:"image"`
	// Pods are the UIDs of the pods that need the image.
	Pods []pod.UID `json:"pods"`
	// Ahead is true if no container waits for the pull yet.
	Ahead bool `json:"ahead,omitempty"`
	// Since is when the registry was contacted; nil while the pull is queued.
	Since *time.Time `json:"since,omitempty"`
	// Behind is the current pull that started first; nil unless this pull is queued.
	Behind *PullAhead `json:"behind,omitempty"`
	// Place is the position in the queue, 1 for the next; AtOnce is the limit of parallel pulls, 0
	// without a limit.
	Place  int `json:"place,omitempty"`
	AtOnce int `json:"atOnce,omitempty"`
	// Done and Total are in bytes; a Total of 0 is unknown: the runtime does not report it, or not
	// yet.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Rate is in bytes per second, without those that were present before; 0 is unknown.
	Rate int64 `json:"rate,omitempty"`
	// Last is when bytes were last received, as far as the runtime reports it.
	Last *time.Time `json:"last,omitempty"`
}

// Rest returns the remaining time of the pull at its rate; 0 if unknown.
func (p Pull) Rest() time.Duration {
	if p.Rate == 0 || p.Done >= p.Total {
		return 0
	}
	return time.Duration(float64(p.Total-p.Done) / float64(p.Rate) * float64(time.Second))
}

// PullAhead is a pull that queued pulls wait for.
type PullAhead struct {
	Image string    `json:"image"`
	Since time.Time `json:"since"`
	// Pods are the pods that need it, as namespace/name; empty if they are deleted.
	Pods []string `json:"pods,omitempty"`
	// Rest is the remaining time at its rate, in nanoseconds; 0 if unknown.
	Rest time.Duration `json:"rest,omitempty"`
}

// PullsOf returns the pulls for a pod.
func PullsOf(pulls []Pull, uid pod.UID) []Pull {
	var found []Pull
	for _, p := range pulls {
		if slices.Contains(p.Pods, uid) {
			found = append(found, p)
		}
	}
	return found
}

// PullMark returns the suffix to the status of a pod with these pulls, "" for none: the percentage
// of the known bytes that was received.
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

// pullStep is how many bytes a runtime stores at a time. A pull without progress for quietPull is
// reported.
const (
	pullStep  = 1 << 20
	quietPull = 30 * time.Second
)

// describe returns the progress of the pull as a sentence.
func (p Pull) describe(now time.Time) string {
	text := "Image " + OneLine(p.Image)
	place := ""
	if p.Place != 0 && p.AtOnce != 0 {
		place = fmt.Sprintf(", at place %d of the queue (limit: %s at a time),", p.Place, count(p.AtOnce, "pull", "pulls"))
	}
	switch {
	case p.Since == nil && p.Behind == nil:
		return text + " waits until other pulls have ended" + place + "."
	case p.Since == nil:
		text += " waits" + place + " for the pull of " + OneLine(p.Behind.Image)
		if len(p.Behind.Pods) > 0 {
			text += " for " + strings.Join(p.Behind.Pods, ", ")
		}
		text += ", under way for " + duration.HumanDuration(now.Sub(p.Behind.Since))
		if p.Behind.Rest > 0 {
			text += " and for about " + duration.HumanDuration(p.Behind.Rest) + " more"
		}
		return text + "."
	}
	text += " is being pulled"
	if p.Total > 0 {
		text += fmt.Sprintf(": %s of %s (%d%%)", ByteSize(p.Done), ByteSize(p.Total), 100*p.Done/p.Total)
	}
	text += " for " + duration.HumanDuration(now.Sub(*p.Since))
	if rest := p.Rest(); rest > 0 {
		text += fmt.Sprintf(", at %s/s, so that the rest takes about %s", ByteSize(p.Rate), duration.HumanDuration(rest))
	}
	if p.Last != nil && p.Done < p.Total {
		// The runtime may buffer the bytes of one step.
		step := max(quietPull, 3*time.Duration(float64(pullStep)/float64(max(1, p.Rate))*float64(time.Second)))
		if quiet := now.Sub(*p.Last); quiet > step {
			text += fmt.Sprintf("; no progress for %s", duration.HumanDuration(quiet))
		}
	}
	return text + "."
}

// pulls describes the pulls for the pod.
func pulls(f *facts) string {
	var b strings.Builder
	for _, p := range PullsOf(f.Pulls, f.pod.UID) {
		b.WriteString(" " + p.describe(f.now))
	}
	return b.String()
}
