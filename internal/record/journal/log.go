package journal

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"time"
)

const (
	// quietFor is how long a repeated error of a subject is not logged.
	quietFor = 10 * time.Minute
	// maxLoggedErrors bounds the logged errors that are remembered per subject.
	maxLoggedErrors = 8
	// tailLength is the length of the common suffix that makes two errors equal: callers prepend
	// their context.
	tailLength = 100
)

type loggedError struct {
	component, container, decision string
	tail                           string
	at                             time.Time
	suppressed                     int // repetitions that were not logged
}

// changing matches the variable parts of equal errors: numbers and IDs.
var changing = regexp.MustCompile(`[0-9a-f]{12,}|[0-9]+`)

// tailOf returns the normalized suffix that identifies the error.
func tailOf(err string) string {
	err = err[max(0, len(err)-3*tailLength):]
	err = strings.Join(strings.Fields(changing.ReplaceAllString(err, "#")), " ")
	return err[max(0, len(err)-tailLength):]
}

// isSameAs reports whether both are the same error: a repetition, or the same error reported by a
// caller, in an event or at the end of a pass. A probe result is never equal to the failures before
// it.
func (t *loggedError) isSameAs(o *loggedError) bool {
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

// shouldLog reports whether the entry's error is to be logged, and the number of repetitions since
// it was last logged.
func (r *ring) shouldLog(e *Entry) (suppressed int, shouldLog bool) {
	now := loggedError{component: e.Component, container: e.Container, decision: e.Decision, tail: tailOf(e.Error), at: e.Time}
	for i := range r.logged {
		t := &r.logged[i]
		if !t.isSameAs(&now) {
			continue
		}
		if e.Time.Sub(t.at) < quietFor {
			t.suppressed++
			return 0, false
		}
		suppressed, t.suppressed, t.at = t.suppressed, 0, e.Time
		return suppressed, true
	}
	if len(r.logged) == maxLoggedErrors {
		r.size -= r.logged[0].size()
		r.logged = append(r.logged[:0], r.logged[1:]...)
	}
	r.logged = append(r.logged, now)
	r.size += now.size()
	return 0, true
}

// size returns the approximate size in bytes.
func (t *loggedError) size() int {
	const overhead = 96
	return overhead + len(t.component) + len(t.container) + len(t.decision) + len(t.tail)
}

// logEntry logs the entry at the level. suppressed is the number of repetitions of its error since
// it was last logged.
func (j *Journal) logEntry(e *Entry, level slog.Level, suppressed int) {
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
	if suppressed > 0 {
		attrs = append(attrs, "again", suppressed)
	}
	if e.Error != "" {
		attrs = append(attrs, "error", e.Error)
	}
	j.log.Log(context.Background(), level, e.Decision, attrs...)
}
