package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"berth/internal/record/journal"
)

func printTimeline(w io.Writer, entries []journal.Entry, zone *time.Location) error {
	if len(entries) == 0 {
		return nil
	}
	rows := [][]string{{"TIME", "AFTER", "COMPONENT", "CONTAINER", "DECISION"}}
	day, before, subject := "", time.Time{}, entries[0].Subject.UID
	headings := func(e *journal.Entry, at time.Time) {
		if e.Subject.UID != subject {
			// Group entries by pod UID: the times of two pods with one name may overlap.
			subject, before = e.Subject.UID, time.Time{}
			rows = append(rows, []string{fmt.Sprintf("%s, pod with UID %s:", e.Subject, e.Subject.UID)})
		}
		if d := at.In(zone).Format(time.DateOnly); d != day {
			day = d
			rows = append(rows, []string{day})
		}
	}
	for _, f := range foldRounds(entries) {
		if f.rounds > 1 {
			headings(&f.entries[0], f.since)
			rows = append(rows, []string{f.since.In(zone).Format("15:04:05.000"), formatAfter(before, f.since), "", "", f.heading()})
			before = f.entries[0].Time
		}
		for i := range f.entries {
			e := &f.entries[i]
			headings(e, e.Time)
			rows = append(rows, []string{e.Time.In(zone).Format("15:04:05.000"), formatAfter(before, e.Time), e.Component, e.Container, entryText(*e)})
			if e.Error != "" {
				rows = append(rows, []string{"", "", "", "", "  error: " + oneLine(e.Error)})
			}
			before = e.Time
		}
	}
	var t table
	for _, r := range rows {
		if len(r) > 1 { // the others are headings
			t.measure(r)
		}
	}
	for _, r := range rows {
		line := r[0]
		if len(r) > 1 {
			line = t.line(r)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// entryText formats the decision, its reason, count and duration in one line.
func entryText(e journal.Entry) string {
	text := oneLine(e.Decision)
	if e.Why != "" {
		text += ": " + oneLine(e.Why)
	}
	var notes []string
	if e.Took > 0 {
		notes = append(notes, "took "+roundDuration(e.Took).String())
	}
	if e.Count > 1 {
		notes = append(notes, fmt.Sprintf("%d times in a row", e.Count))
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, ", ") + ")"
	}
	return text
}

// formatAfter formats the time since the previous entry, or returns "" for the first.
func formatAfter(before, t time.Time) string {
	if before.IsZero() {
		return ""
	}
	return "+" + roundDuration(max(0, t.Sub(before))).String()
}

// roundDuration rounds to about three digits.
func roundDuration(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}
