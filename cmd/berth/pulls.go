package main

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/api/server"
)

// pullStep is how many bytes a runtime stores at a time. A pull without progress for quietPull is
// reported.
const (
	pullStep  = 1 << 20
	quietPull = 30 * time.Second
)

// pullText describes the progress of a pull.
func pullText(p server.Pull, now time.Time) string {
	text := "Image " + oneLine(p.Image)
	switch {
	case p.Since == nil && p.Behind == nil:
		return text + " waits until other pulls have ended" + placeText(p) + "."
	case p.Since == nil:
		text += " waits" + placeText(p) + " for the pull of " + oneLine(p.Behind.Image)
		if len(p.Behind.Pods) > 0 {
			text += " for " + strings.Join(p.Behind.Pods, ", ")
		}
		text += ", under way for " + duration.HumanDuration(now.Sub(p.Behind.Since))
		if p.Behind.Rest > 0 {
			text += " and for about " + duration.HumanDuration(p.Behind.Rest) + " more"
		}
		return text + "."
	case p.Total > 0:
		text += fmt.Sprintf(" is being pulled: %s of %s (%d%%)", byteSize(p.Done), byteSize(p.Total), 100*p.Done/p.Total)
	default:
		text += " is being pulled"
	}
	text += " for " + duration.HumanDuration(now.Sub(*p.Since))
	if rest := p.Rest(); rest > 0 {
		text += fmt.Sprintf(", at %s/s, so that the rest takes about %s", byteSize(p.Rate), duration.HumanDuration(rest))
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

// placeText describes a pull's place in the queue and the limit of parallel pulls.
func placeText(p server.Pull) string {
	if p.Place == 0 || p.AtOnce == 0 {
		return ""
	}
	return fmt.Sprintf(", at place %d of the queue (limit: %s at a time),", p.Place, count(p.AtOnce, "pull"))
}
