package journal

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"time"
)

const (
	// quietFor is how long an error of a subject that was logged is not logged again.
	quietFor = 10 * time.Minute
	// toldErrors bounds how many errors of a subject are known to be logged.
	toldErrors = 8
	// tailLength is how much of the end of two errors has to be the same for them to be one: what is
	// added on the way up stands before it.
	tailLength = 100
)

// toldError is an error that was logged.
type toldError struct {
	component, container, decision string
	tail                           string
	at                             time.Time
	kept                           int // how often it came since, without being logged
}

// changing is what differs between two tries that fail alike: numbers and ids.
var changing = regexp.MustCompile(`[0-9a-f]{12,}|[0-9]+`)

// tailOf returns what the error is known by.
func tailOf(err string) string {
	err = err[max(0, len(err)-3*tailLength):]
	err = strings.Join(strings.Fields(changing.ReplaceAllString(err, "#")), " ")
	return err[max(0, len(err)-tailLength):]
}

// isSameAs reports whether the other one says the same: one that comes again, or that is told on the
// way up, by an event or the end of a pass. What a verdict of a probe says is never said by the
// failures before it.
func (t *toldError) isSameAs(o *toldError) bool {
	if t.container != "" && o.container != "" && t.container != o.container {
		return false
	}
	if t.component == o.component && t.decision == o.decision {
		return t.tail == o.tail
	}
	if t.component == o.component || t.component == "probe" || o.component == "probe" {
		return false
	}
	return strings.HasSuffix(t.tail, o.tail) || strings.HasSuffix(o.tail, t.tail)
}

// tell reports whether the entry's error is to be logged, and how often it came since that was done
// last.
func (r *ring) tell(e *Entry) (kept int, tell bool) {
	now := toldError{component: e.Component, container: e.Container, decision: e.Decision, tail: tailOf(e.Error), at: e.Time}
	for i := range r.told {
		t := &r.told[i]
		if !t.isSameAs(&now) {
			continue
		}
		if e.Time.Sub(t.at) < quietFor {
			t.kept++
			return 0, false
		}
		kept, t.kept, t.at = t.kept, 0, e.Time
		return kept, true
	}
	if len(r.told) == toldErrors {
		r.told = append(r.told[:0], r.told[1:]...)
	}
	r.told = append(r.told, now)
	return 0, true
}

// logEntry writes the entry to the log: those with an error as warnings, but not one that was logged
// already (kept is how often it came since then).
func (j *Journal) logEntry(e *Entry, level slog.Level, kept int) {
	if !j.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []any{"pod", e.Subject.String(), "component", e.Component}
	if e.Container != "" {
		attrs = append(attrs, "container", e.Container)
	}
	if e.Why != "" {
		attrs = append(attrs, "why", e.Why)
	}
	if e.Took > 0 {
		attrs = append(attrs, "took", e.Took)
	}
	if kept > 0 {
		attrs = append(attrs, "again", kept)
	}
	if e.Error != "" {
		attrs = append(attrs, "error", e.Error)
	}
	j.log.Log(context.Background(), level, e.Decision, attrs...)
}
