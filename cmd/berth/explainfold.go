package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/record/journal"
)

// longestRound is the maximum number of decisions in a recognized round.
const longestRound = 16

// fold is one decision, or the last of several equal rounds of decisions, such as those of a crash
// loop.
type fold struct {
	entries []journal.Entry
	rounds  int // 1 for a single occurrence
	since   time.Time
}

// heading reports the number of rounds.
func (f fold) heading() string { return fmt.Sprintf("from here on %d times, at last:", f.rounds) }

// foldRounds finds rounds of decisions that differ only in numbers, times and durations.
func foldRounds(entries []journal.Entry) []fold {
	shapes := make([]string, len(entries))
	for i := range entries {
		shapes[i] = shapeOf(&entries[i])
	}
	var out []fold
	for i := 0; i < len(entries); {
		length, rounds := longestRepeat(shapes[i:])
		end := i + length*rounds
		out = append(out, fold{entries: entries[end-length : end], rounds: rounds, since: entries[i].Time})
		i = end
	}
	return out
}

// longestRepeat returns the length and count of the repeated round at the beginning of shapes that
// covers the most of them, or 1 and 1 if nothing repeats.
func longestRepeat(shapes []string) (length, rounds int) {
	length, rounds = 1, 1
	for l := 1; l <= min(longestRound, len(shapes)/2); l++ {
		n := 1
		for (n+1)*l <= len(shapes) && slices.Equal(shapes[:l], shapes[n*l:(n+1)*l]) {
			n++
		}
		if l*(n-1) > length*(rounds-1) {
			length, rounds = l, n
		}
	}
	return length, rounds
}

var (
	durations = regexp.MustCompile(`([0-9][0-9.]*(h|ms|m|µs|ns|s))+`)
	numbers   = regexp.MustCompile(`[0-9]+`)
)

// shapeOf returns an entry's text with numbers and durations masked.
func shapeOf(e *journal.Entry) string {
	text := strings.Join([]string{string(e.Subject.UID), e.Component, e.Container, e.Decision, e.Why, e.Error}, "\x00")
	return numbers.ReplaceAllString(durations.ReplaceAllString(text, "#d"), "#")
}

// withoutEchoes removes entries that repeat an adjacent decision: events, resulting states, and
// status reports to the API server.
func withoutEchoes(entries []journal.Entry) []journal.Entry {
	left := slices.DeleteFunc(slices.Clone(entries), func(e journal.Entry) bool {
		switch e.Component {
		case "event":
			return e.Error == "" || e.Decision == "BackOff" || strings.HasPrefix(e.Error, "Error: ") || isSaidBy(entries, e)
		case "status":
			return e.Decision == "reported to the API server" || e.Decision == "waiting: CrashLoopBackOff" || e.Decision == "waiting: ImagePullBackOff" ||
				strings.HasPrefix(e.Decision, "waiting: ") && isSaidBy(entries, journal.Entry{Time: e.Time, Error: cmp.Or(e.Why, "?")})
		}
		return false
	})
	return slices.CompactFunc(left, func(a, b journal.Entry) bool { // for example a repeated plan
		return a.Component == "runtime" && a.Component == b.Component && a.Container == b.Container && a.Decision == b.Decision && a.Error == b.Error
	})
}

// plainEntry returns an entry without the pod's name and without what the headline contains.
func (s screen) plainEntry(e journal.Entry) journal.Entry {
	if e.Component == "eviction" || e.Component == "admission" || e.Component == "claims" {
		e.Why = s.inUnits(e.Why)
	}
	switch {
	case e.Component == "worker" && e.Error != "":
		e.Error, e.Why = plainError(e.Error), ""
	case strings.HasSuffix(e.Decision, ": ImagePullBackOff"):
		if i := strings.LastIndex(e.Why, "; next try at "); i >= 0 {
			e.Why = e.Why[i+2:]
			if at, err := time.Parse("next try at "+time.RFC3339, e.Why); err == nil {
				e.Why = "next try at " + s.at(at)
			}
		}
	case e.Component == "status" && strings.HasPrefix(e.Decision, "not ready: "):
		e.Why = ""
	}
	return e
}

// overtaken marks a plan that another decision superseded before its time.
func (s screen) overtaken(plan *journal.Entry) string {
	at := planned.FindStringSubmatch(plan.Decision)
	if plan.Component != "runtime" || at == nil {
		return ""
	}
	for _, e := range s.timeline.Entries {
		if e.Time.Before(plan.Time) || e.Subject.UID != plan.Subject.UID {
			continue
		}
		if e.Time.In(s.zone).Format(time.TimeOnly) >= at[1] && e.Time.Sub(plan.Time) < 24*time.Hour {
			return ""
		}
		if e.Decision == "end the pod" || e.Decision == "changed" {
			return fmt.Sprintf("[overtaken at %s: %s] ", s.at(e.Time), e.Decision)
		}
	}
	return ""
}

// planned matches a start that a plan schedules for later.
var planned = regexp.MustCompile(` at (\d\d:\d\d:\d\d), when its back-off`)

// echoWithin is the maximum time between an event and the decision that it reports.
const echoWithin = 2 * time.Second

// isSaidBy reports whether another entry within echoWithin has the event's error.
func isSaidBy(entries []journal.Entry, event journal.Entry) bool {
	return slices.ContainsFunc(entries, func(e journal.Entry) bool {
		apart := e.Time.Sub(event.Time)
		return e.Component != "event" && e.Error != "" && apart.Abs() <= echoWithin &&
			(strings.Contains(e.Error, event.Error) || strings.Contains(event.Error, e.Error))
	})
}

// onceFrom is the minimum length of a text that the screen does not repeat.
const onceFrom = 40

// whyOnce returns the inputs of an event or a status without text that was printed before, as an
// error or as inputs of another decision. said maps printed texts to their times.
func (s screen) whyOnce(e *journal.Entry, said map[string]time.Time) string {
	reason, text, ok := strings.Cut(e.Why, ": ")
	if !ok || e.Component != "status" {
		reason, text = "", e.Why
	}
	text = strings.TrimPrefix(text, "Pod was rejected: ")
	if len(text) < onceFrom {
		return e.Why
	}
	if e.Component == "status" {
		for before, at := range said {
			if strings.Contains(before, strings.TrimSpace(text)) {
				return joinNonEmpty(": ", reason, "as at "+s.at(at))
			}
		}
	}
	if _, again := said[e.Why]; !again {
		said[e.Why] = e.Time
	}
	return e.Why
}

// errorOnce returns the error of an entry, or a reference to the time at which it was printed
// first. said maps printed errors to their times.
func (s screen) errorOnce(e *journal.Entry, said map[string]time.Time) string {
	if e.Error == "" {
		return ""
	}
	if first, again := said[e.Error]; again {
		return fmt.Sprintf("as at %s", s.at(first))
	}
	for before, at := range said {
		if e.Component == "event" && len(e.Error) >= onceFrom && strings.Contains(before, strings.TrimSpace(e.Error)) {
			return fmt.Sprintf("as at %s", s.at(at))
		}
	}
	said[e.Error] = e.Time
	return oneLine(e.Error)
}
