package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"berth/internal/record/journal"
)

// printTimeline prints the entries as a table of times and decisions.
func printTimeline(w io.Writer, entries []journal.Entry, zone *time.Location) error {
	if len(entries) == 0 {
		return nil
	}
	rows := [][]string{{"TIME", "AFTER", "COMPONENT", "CONTAINER", "DECISION"}}
	day, before, incarnation := "", time.Time{}, entries[0].Subject.UID
	for _, e := range entries {
		at := e.Time.In(zone)
		if e.Subject.UID != incarnation {
			// Two incarnations follow each other, though their times may overlap.
			incarnation, before = e.Subject.UID, time.Time{}
			rows = append(rows, []string{fmt.Sprintf("%s, pod with UID %s:", e.Subject, e.Subject.UID)})
		}
		if d := at.Format(time.DateOnly); d != day {
			day = d
			rows = append(rows, []string{day})
		}
		rows = append(rows, []string{at.Format("15:04:05.000"), formatAfter(before, e.Time), e.Component, e.Container, entryText(e)})
		if e.Error != "" {
			rows = append(rows, []string{"", "", "", "", "  error: " + oneLine(e.Error)})
		}
		before = e.Time
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

// entryText says in one line what was decided, why, how often and how long it took.
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

// formatAfter is the time since the entry before, or nothing for the first.
func formatAfter(before, t time.Time) string {
	if before.IsZero() {
		return ""
	}
	return "+" + roundDuration(max(0, t.Sub(before))).String()
}

// roundDuration keeps three digits or so.
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
