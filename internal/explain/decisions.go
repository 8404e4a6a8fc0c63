package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/record/journal"
)

// Decision is a row of a timeline: a decision about a pod, or the heading of repeated rounds of
// decisions, such as those of a crash loop.
type Decision struct {
	Time      time.Time       `json:"time"`
	Subject   journal.Subject `json:"subject"`
	Component string          `json:"component,omitempty"`
	Container string          `json:"container,omitempty"`
	Text      string          `json:"text"`
	Error     string          `json:"error,omitempty"`
	Rounds    int             `json:"rounds,omitempty"` // of a heading, above the last round
}

// round is a round of one or more decisions, the last of several equal rounds.
type round struct {
	entries []journal.Entry
	times   int       // 1 for a single occurrence
	since   time.Time // of the first round
}

func (r round) heading() Decision {
	return Decision{Time: r.since, Subject: r.entries[0].Subject, Rounds: r.times, Text: fmt.Sprintf("from here on %d times, at last:", r.times)}
}

// Fold returns the decisions of the journal's entries. Of repeated rounds, only the last one is
// included, below a heading with their number.
func Fold(entries []journal.Entry) []Decision {
	var rows []Decision
	for _, r := range foldRounds(entries) {
		if r.times > 1 {
			rows = append(rows, r.heading())
		}
		for _, e := range r.entries {
			rows = append(rows, Decision{Time: e.Time, Subject: e.Subject, Component: e.Component, Container: e.Container, Text: entryText(&e), Error: OneLine(e.Error)})
		}
	}
	return rows
}

// maxLast is the maximum number of the last decisions, including headings.
const maxLast = 8

// lastDecisions returns the last decisions about the pod, oldest first, without what others or the
// verdict say.
func lastDecisions(f *facts) []Decision {
	var rows []Decision
	before := printed{}
	for _, r := range lastRounds(foldRounds(withoutRepeats(f.timeline.Entries)), maxLast) {
		if r.times > 1 {
			rows = append(rows, r.heading())
		}
		for _, e := range r.entries {
			plain := plainEntry(f, e)
			plain.Why = before.why(f, &plain)
			rows = append(rows, Decision{
				Time: e.Time, Subject: e.Subject, Component: e.Component, Container: e.Container,
				Text: superseded(f, &plain) + entryText(&plain), Error: before.error(f, &plain),
			})
		}
	}
	return rows
}

func entryText(e *journal.Entry) string {
	text := joinNonEmpty(": ", OneLine(e.Decision), OneLine(e.Why))
	var notes []string
	if e.Took > 0 {
		notes = append(notes, "took "+RoundDuration(e.Took).String())
	}
	if e.Count > 1 {
		notes = append(notes, fmt.Sprintf("%d times in a row", e.Count))
	}
	return text + parenthesis(strings.Join(notes, ", "))
}

// maxRound is the maximum number of decisions in a recognized round.
const maxRound = 16

// foldRounds finds rounds of decisions that differ only in numbers, times and durations.
func foldRounds(entries []journal.Entry) []round {
	masked := make([]string, len(entries))
	for i := range entries {
		masked[i] = maskedText(&entries[i])
	}
	var rounds []round
	for i := 0; i < len(entries); {
		length, times := longestRepeat(masked[i:])
		end := i + length*times
		rounds = append(rounds, round{entries: entries[end-length : end], times: times, since: entries[i].Time})
		i = end
	}
	return rounds
}

// longestRepeat returns the length and count of the repeated round at the beginning of shapes that
// covers the most of them, or 1 and 1 if nothing repeats.
func longestRepeat(masked []string) (length, times int) {
	length, times = 1, 1
	for l := 1; l <= min(maxRound, len(masked)/2); l++ {
		n := 1
		for (n+1)*l <= len(masked) && slices.Equal(masked[:l], masked[n*l:(n+1)*l]) {
			n++
		}
		if l*(n-1) > length*(times-1) {
			length, times = l, n
		}
	}
	return length, times
}

var (
	durations = regexp.MustCompile(`([0-9][0-9.]*(h|ms|m|µs|ns|s))+`)
	numbers   = regexp.MustCompile(`[0-9]+`)
)

// maskedText returns an entry's text with numbers and durations masked.
func maskedText(e *journal.Entry) string {
	text := strings.Join([]string{string(e.Subject.UID), e.Component, e.Container, e.Decision, e.Why, e.Error}, "\x00")
	return numbers.ReplaceAllString(durations.ReplaceAllString(text, "#d"), "#")
}

// lastRounds returns the last rounds that fit into most rows, including headings.
func lastRounds(rounds []round, most int) []round {
	for i := len(rounds) - 1; i >= 0; i-- {
		r := &rounds[i]
		if r.times > 1 {
			most--
		}
		if len(r.entries) < most {
			most -= len(r.entries)
			continue
		}
		r.entries = r.entries[len(r.entries)-max(most, 1):]
		return rounds[i:]
	}
	return rounds
}

// withoutRepeats removes entries that repeat an adjacent decision: events, resulting states, and
// status reports to the API server.
func withoutRepeats(entries []journal.Entry) []journal.Entry {
	left := slices.DeleteFunc(slices.Clone(entries), func(e journal.Entry) bool {
		switch e.Component {
		case "event":
			return e.Error == "" || e.Decision == "BackOff" || strings.HasPrefix(e.Error, "Error: ") || isRepeated(entries, e.Time, e.Error)
		case "status":
			return slices.Contains([]string{"reported to the API server", "waiting: CrashLoopBackOff", "waiting: ImagePullBackOff"}, e.Decision) ||
				strings.HasPrefix(e.Decision, "waiting: ") && isRepeated(entries, e.Time, cmp.Or(e.Why, "?"))
		}
		return false
	})
	return slices.CompactFunc(left, func(a, b journal.Entry) bool { // for example a repeated plan
		return a.Component == "runtime" && a.Component == b.Component && a.Container == b.Container && a.Decision == b.Decision && a.Error == b.Error
	})
}

// repeatWithin is the maximum time between an event and the decision that it reports.
const repeatWithin = 2 * time.Second

// isRepeated reports whether another entry within repeatWithin has the error that was reported at a
// time.
func isRepeated(entries []journal.Entry, at time.Time, reported string) bool {
	return slices.ContainsFunc(entries, func(e journal.Entry) bool {
		return e.Component != "event" && e.Error != "" && e.Time.Sub(at).Abs() <= repeatWithin &&
			(strings.Contains(e.Error, reported) || strings.Contains(reported, e.Error))
	})
}

// plainEntry returns an entry without the pod's name and without what the verdict contains.
func plainEntry(f *facts, e journal.Entry) journal.Entry {
	if slices.Contains([]string{"eviction", "admission", "claims"}, e.Component) {
		e.Why = inUnits(f, e.Why)
	}
	switch {
	case e.Component == "worker" && e.Error != "":
		e.Error, e.Why = plainError(e.Error), ""
	case strings.HasSuffix(e.Decision, ": ImagePullBackOff"):
		if i := strings.LastIndex(e.Why, "; next try at "); i >= 0 {
			e.Why = e.Why[i+2:]
			if at, err := time.Parse("next try at "+time.RFC3339, e.Why); err == nil {
				e.Why = "next try at " + f.at(at)
			}
		}
	case e.Component == "status" && strings.HasPrefix(e.Decision, "not ready: "):
		e.Why = ""
	}
	return e
}

// planned matches a start that a plan schedules for later.
var planned = regexp.MustCompile(` at (\d\d:\d\d:\d\d), when its back-off`)

// superseded marks a plan that another decision superseded before its time.
func superseded(f *facts, plan *journal.Entry) string {
	at := planned.FindStringSubmatch(plan.Decision)
	if plan.Component != "runtime" || at == nil {
		return ""
	}
	for _, e := range f.timeline.Entries {
		if e.Time.Before(plan.Time) || e.Subject.UID != plan.Subject.UID {
			continue
		}
		if e.Time.In(f.zone).Format(time.TimeOnly) >= at[1] && e.Time.Sub(plan.Time) < 24*time.Hour {
			return ""
		}
		if e.Decision == "end the pod" || e.Decision == "changed" {
			return fmt.Sprintf("[overtaken at %s: %s] ", f.at(e.Time), e.Decision)
		}
	}
	return ""
}

// minRepeat is the minimum length of a text that is not repeated.
const minRepeat = 40

// printed has the texts that were printed, and when.
type printed map[string]time.Time

// reference returns a reference to a printed text that contains the text, or "".
func (p printed) reference(f *facts, text string) string {
	for before, at := range p {
		if len(text) >= minRepeat && strings.Contains(before, strings.TrimSpace(text)) {
			return "as at " + f.at(at)
		}
	}
	return ""
}

// why returns the inputs of an entry, those of a status without text that was printed before.
func (p printed) why(f *facts, e *journal.Entry) string {
	reason, text, ok := strings.Cut(e.Why, ": ")
	if !ok || e.Component != "status" {
		reason, text = "", e.Why
	}
	text = strings.TrimPrefix(text, "Pod was rejected: ")
	if before := p.reference(f, text); before != "" && e.Component == "status" {
		return joinNonEmpty(": ", reason, before)
	}
	if _, again := p[e.Why]; !again && len(text) >= minRepeat {
		p[e.Why] = e.Time
	}
	return e.Why
}

// error returns the error of an entry, or a reference to the time at which it was printed first.
func (p printed) error(f *facts, e *journal.Entry) string {
	if first, again := p[e.Error]; again && e.Error != "" {
		return "as at " + f.at(first)
	}
	if before := p.reference(f, e.Error); before != "" && e.Component == "event" {
		return before
	}
	p[e.Error] = e.Time
	return OneLine(e.Error)
}
