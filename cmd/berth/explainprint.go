package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth/internal/api/server"
	"berth/internal/record/journal"
)

const (
	// textWidth is where sentences are broken; barWidth is the longest bar of a start.
	textWidth = 100
	barWidth  = 30
)

// printExplanation prints how the pod is, what comes next, its start, the ends of its containers,
// and all decisions.
func printExplanation(w io.Writer, e server.Explanation, now time.Time, zone *time.Location) error {
	s := newSight(e, now, zone)
	var b strings.Builder
	writeWrapped(&b, s.headline(), "")
	for _, n := range s.next() {
		writeWrapped(&b, "Next: "+n, "      ")
	}
	for _, part := range [][]string{s.start(), s.ends()} {
		if len(part) > 0 {
			b.WriteString("\n" + strings.Join(part, "\n") + "\n")
		}
	}
	b.WriteString("\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	var entries []journal.Entry
	for _, st := range e.Stories {
		entries = append(entries, st.Entries...)
	}
	return printTimeline(w, entries, zone)
}

// writeWrapped writes a text in lines of textWidth; all but the first begin with indent.
func writeWrapped(b *strings.Builder, text, indent string) {
	column := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > textWidth:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteString("\n")
}

// start is the waterfall of the pod's first start: when each step was done, and as a bar the time
// since the one before.
func (s sight) start() []string {
	marks := slices.Clone(s.story.Marks)
	if len(marks) == 0 || s.story.Subject.UID == "" {
		return nil
	}
	if ready := slices.IndexFunc(marks, func(m journal.Mark) bool { return m.Step == journal.Ready }); ready >= 0 {
		marks = marks[:ready+1] // what came later, as an ephemeral container, is not of the start
	}
	if !s.story.Seen.After(marks[0].Time) {
		marks = slices.Insert(marks, 0, journal.Mark{Step: journal.Seen, Time: s.story.Seen})
	}
	first, last := marks[0].Time, marks[len(marks)-1].Time
	whole := last.Sub(first)
	longest := 0
	rows := [][]string{{"STEP", "CONTAINER", "AT", "SO FAR", "BAR"}}
	before := first
	for i, m := range marks {
		rows = append(rows, []string{m.Step.String(), m.Container, m.Time.In(s.zone).Format("15:04:05.000"), "+" + roundDuration(m.Time.Sub(first)).String(), bar(before.Sub(first), m.Time.Sub(first), whole)})
		if i > 0 && m.Time.Sub(before) > marks[longest].Time.Sub(marks[max(longest-1, 0)].Time) {
			longest = i
		}
		before = m.Time
	}
	title := "Start, on " + first.In(s.zone).Format(time.DateOnly)
	if marks[len(marks)-1].Step == journal.Ready {
		title += ": ready after " + roundDuration(whole).String()
	} else {
		title += ": so far " + roundDuration(whole).String()
	}
	if longest > 0 {
		m := marks[longest]
		step := m.Step.String()
		if m.Container != "" {
			step += " of " + m.Container
		}
		title += fmt.Sprintf(", longest wait %s for %s", roundDuration(m.Time.Sub(marks[longest-1].Time)), step)
	}
	rows[0][4] = ""
	var t table
	return append([]string{title}, t.lines(rows)...)
}

// bar draws the part of the whole from one time to another.
func bar(from, to, whole time.Duration) string {
	if whole <= 0 || to <= from {
		return ""
	}
	a, b := int(from*barWidth/whole), int(to*barWidth/whole)
	if a == b {
		return strings.Repeat(" ", min(a, barWidth-1)) + "▏"
	}
	return strings.Repeat(" ", a) + strings.Repeat("█", b-a)
}

// ends are the last ends of containers, and what the last of each left in its log.
func (s sight) ends() []string {
	if len(s.story.Ends) == 0 {
		return nil
	}
	rows := [][]string{{"CONTAINER", "RESTART", "ENDED", "RAN FOR", "HOW"}}
	newest := map[string]*journal.End{}
	var order []string
	for i := range s.story.Ends {
		e := &s.story.Ends[i]
		ran := ""
		if !e.Started.IsZero() && e.Finished.After(e.Started) {
			ran = roundDuration(e.Finished.Sub(e.Started)).String()
		}
		ended := ""
		if !e.Finished.IsZero() {
			ended = s.at(e.Finished)
		}
		rows = append(rows, []string{e.Container, fmt.Sprint(e.Restart), ended, ran, endText(e.ExitCode, e.Reason, e.Message) + s.killedFor(*e)})
		if newest[e.Container] == nil {
			order = append(order, e.Container)
		}
		newest[e.Container] = e
	}
	var t table
	lines := append([]string{"Ends of containers"}, t.lines(rows)...)
	for _, c := range order {
		e := newest[c]
		if strings.TrimSpace(e.Log) == "" {
			continue
		}
		lines = append(lines, "", fmt.Sprintf("The last lines of container %q, restart %d", c, e.Restart))
		for l := range strings.Lines(e.Log) {
			lines = append(lines, "  | "+safeLine(l))
		}
	}
	return lines
}

// safeLine is a line of a log as it may be shown on a terminal, its columns kept.
func safeLine(l string) string {
	l = strings.TrimRight(l, "\r\n")
	indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
	return strings.ReplaceAll(indent, "\t", "    ") + oneLine(l)
}
