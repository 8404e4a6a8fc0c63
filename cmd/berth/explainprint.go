package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"berth/internal/api/server"
	"berth/internal/record/journal"
)

// printExplanation prints the pod's state, what happens next, its start, its container exits, and
// all decisions.
func printExplanation(w io.Writer, e server.Explanation, now time.Time, zone *time.Location) error {
	s := newExplainer(e, now, zone)
	var b strings.Builder
	b.WriteString(strings.Join(s.head(screenWidth), "\n") + "\n")
	for _, part := range [][]string{waterfall{s}.start(len(waterfall{s}.spans())), s.ends()} {
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

// writeWrapped wraps a text at width columns; all lines but the first begin with indent.
func writeWrapped(b *strings.Builder, text, indent string, width int) {
	column := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
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

// ends returns the last container exits, and the log tail of each container's last exit.
func (s explainer) ends() []string {
	if len(s.timeline.Ends) == 0 {
		return nil
	}
	rows := [][]string{{"CONTAINER", "RESTART", "ENDED", "RAN FOR", "HOW"}}
	newest := map[string]*journal.End{}
	var order []string
	for i := range s.timeline.Ends {
		e := &s.timeline.Ends[i]
		ran := ""
		if !e.Started.IsZero() && e.Finished.After(e.Started) {
			ran = roundDuration(e.Finished.Sub(e.Started)).String()
		}
		ended := ""
		if !e.Finished.IsZero() {
			ended = s.at(e.Finished)
		}
		rows = append(rows, []string{e.Container, fmt.Sprint(e.Restart), ended, ran, endText(e.ExitCode, e.Reason, e.Message) + ending{s}.killedFor(*e)})
		if newest[e.Container] == nil {
			order = append(order, e.Container)
		}
		newest[e.Container] = e
	}
	var t table
	lines := append([]string{"Ends of containers"}, t.lines(rows)...)
	for _, c := range order {
		e := newest[c]
		if log := logLines(e.Log); len(log) > 0 {
			lines = append(lines, "", fmt.Sprintf("The last lines of container %q, restart %d", c, e.Restart))
			lines = append(lines, log...)
		}
	}
	return lines
}

// logLines returns the printable lines of a log, none if it is blank.
func logLines(log string) (lines []string) {
	if strings.TrimSpace(log) == "" {
		return nil
	}
	for l := range strings.Lines(log) {
		lines = append(lines, "  | "+safeLine(l))
	}
	return lines
}

// safeLine escapes a log line for a terminal and preserves its indentation.
func safeLine(l string) string {
	l = strings.TrimRight(l, "\r\n")
	indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
	return strings.ReplaceAll(indent, "\t", "    ") + oneLine(l)
}
