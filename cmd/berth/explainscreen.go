package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth/internal/explain"
)

// Screen size of the short form if the output is not a terminal.
const (
	screenWidth = 120
	screenRows  = 24
)

const (
	// headMost is the maximum number of rows for the state and what happens next.
	headMost = 12
	// decisionRows is the maximum number of rows of the decisions, and cellRows that of one.
	decisionRows = 12
	cellRows     = 3
)

// part is a titled part of the screen below the headline.
type part struct {
	has         int // available rows
	least, most int // rows before other parts exceed their least, and in total
}

// shareRows distributes rows among parts: first each part's least, then up to each part's most, in
// order.
func shareRows(left int, parts ...part) []int {
	rows := make([]int, len(parts))
	for _, limit := range []func(part) int{
		func(p part) int { return p.least },
		func(p part) int { return p.most },
	} {
		for i, p := range parts {
			more := min(max(0, min(p.has, limit(p))-rows[i]), left)
			rows[i] += more
			left -= more
		}
	}
	return rows
}

// screenLines returns the pod's state, what happens next, its start and the last decisions: at most
// screenRows lines of at most width columns.
func screenLines(a explain.Answer, now time.Time, zone *time.Location, width int) []string {
	out := cutRows(headLines(a, width), headMost)
	decisions, steps, left := decisionLines(a.Last, now, zone, width), 0, screenRows-len(out)
	var log []string
	if a.Failed != nil {
		log = logLines(a.Failed.Log)
	}
	if n := len(a.Start); n > 0 {
		left -= 2 // a blank line and the title
		if a.Start[n-1].Open {
			steps = n
			left-- // the column headings
		}
	}
	for _, rows := range []int{len(decisions), len(log)} {
		if rows > 0 {
			left -= 2
		}
	}
	rows := shareRows(left,
		part{has: len(slices.Concat(decisions...)), least: 6, most: decisionRows},
		part{has: len(log), least: 2, most: 5},
		part{has: steps, least: 4, most: steps})
	if len(a.Start) > 0 {
		out = append(append(out, ""), startLines(a, zone, rows[2])...)
	}
	add := func(title string, lines []string) {
		if len(lines) > 0 {
			out = append(append(out, "", title), lines...)
		}
	}
	if len(log) > 0 {
		add(fmt.Sprintf("The last lines of container %q before it ended at %s", a.Failed.Container, explain.At(a.Failed.Finished, now, zone)), log[max(0, len(log)-rows[1]):])
	}
	add(fmt.Sprintf("The last decisions; `berth explain %s --all` has all", a.Subject), lastBlocks(decisions, rows[0]))
	for i := range out {
		out[i] = explain.Truncate(out[i], width)
	}
	return out
}

// lastBlocks returns the rows of the last whole blocks that fit into most rows.
func lastBlocks(blocks [][]string, most int) []string {
	first := len(blocks)
	for first > 0 && most >= len(blocks[first-1]) {
		first--
		most -= len(blocks[first])
	}
	return slices.Concat(blocks[first:]...)
}

// headLines describes the pod's state, the cause, and what happens next.
func headLines(a explain.Answer, width int) []string {
	var b strings.Builder
	writeWrapped(&b, a.Text, "", width)
	for _, n := range a.Next {
		writeWrapped(&b, "Next: "+n, "      ", width)
	}
	for _, n := range a.Node {
		writeWrapped(&b, "The node: "+n, "      ", width)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// decisionLines returns the rows of each decision.
func decisionLines(decisions []explain.Decision, now time.Time, zone *time.Location, width int) (blocks [][]string) {
	var rows [][]string
	for _, d := range decisions {
		text := d.Text
		if d.Error != "" {
			text += ": " + d.Error
		}
		rows = append(rows, []string{explain.At(d.Time, now, zone), d.Component, d.Container, text})
	}
	var t table
	lines := t.lines(rows)
	for _, l := range lines {
		blocks = append(blocks, wrapped(l, t.start(3), width))
	}
	return blocks
}

// wrapped wraps the last cell of a row into at most cellRows rows of the width. It cuts the middle
// of a longer text, because errors end with their cause.
func wrapped(row string, cell, width int) []string {
	indent, text := row, ""
	if r := []rune(row); len(r) > cell {
		indent, text = string(r[:cell]), string(r[cell:])
	}
	for most := utf8.RuneCountInString(text); ; most -= 8 {
		var b strings.Builder
		writeWrapped(&b, cutMiddle(text, most), "", max(width-cell, 20))
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) > cellRows && most > 8 {
			continue
		}
		for i := range lines {
			lines[i] = indent + lines[i]
			indent = strings.Repeat(" ", cell)
		}
		return lines
	}
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

// cutMiddle shortens a text to most characters of its beginning and end, with an ellipsis between.
func cutMiddle(text string, most int) string {
	r := []rune(text)
	if len(r) <= most {
		return text
	}
	head := most / 3
	return string(r[:head]) + " … " + string(r[len(r)-(most-head):])
}

// cutRows returns the first rows, with an ellipsis if it removed any.
func cutRows(lines []string, most int) []string {
	if len(lines) <= most {
		return lines
	}
	lines = slices.Clone(lines[:most])
	lines[most-1] += " …"
	return lines
}

// allLines returns the pod's state, what happens next, its start, its container exits, and all
// decisions.
func allLines(a explain.Answer, now time.Time, zone *time.Location) []string {
	out := headLines(a, screenWidth)
	for _, part := range [][]string{startLines(a, zone, len(a.Start)), exitLines(a.Exits, now, zone)} {
		if len(part) > 0 {
			out = append(append(out, ""), part...)
		}
	}
	return append(append(out, ""), timelineLines(a.Decisions, zone)...)
}

// exitLines returns the last container exits, and the log tail of each container's last exit.
func exitLines(exits []explain.Exit, now time.Time, zone *time.Location) []string {
	if len(exits) == 0 {
		return nil
	}
	rows := [][]string{{"CONTAINER", "RESTART", "ENDED", "RAN FOR", "HOW"}}
	newest := map[string]explain.Exit{}
	var order []string
	for _, e := range exits {
		ran, ended := "", ""
		if !e.Started.IsZero() && e.Finished.After(e.Started) {
			ran = explain.RoundDuration(e.Finished.Sub(e.Started)).String()
		}
		if !e.Finished.IsZero() {
			ended = explain.At(e.Finished, now, zone)
		}
		rows = append(rows, []string{e.Container, fmt.Sprint(e.Restart), ended, ran, e.How})
		if _, known := newest[e.Container]; !known {
			order = append(order, e.Container)
		}
		newest[e.Container] = e
	}
	var t table
	lines := append([]string{"Ends of containers"}, t.lines(rows)...)
	for _, c := range order {
		if log := logLines(newest[c].Log); len(log) > 0 {
			lines = append(append(lines, "", fmt.Sprintf("The last lines of container %q, restart %d", c, newest[c].Restart)), log...)
		}
	}
	return lines
}

// logLines returns the lines of a log, escaped for a terminal and with their indentation; none if
// it is blank.
func logLines(log string) (lines []string) {
	if strings.TrimSpace(log) == "" {
		return nil
	}
	for l := range strings.Lines(log) {
		l = strings.TrimRight(l, "\r\n")
		indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		lines = append(lines, "  | "+strings.ReplaceAll(indent, "\t", "    ")+explain.OneLine(l))
	}
	return lines
}

// timelineLines returns all decisions, oldest first, with the times since the previous ones.
func timelineLines(decisions []explain.Decision, zone *time.Location) []string {
	if len(decisions) == 0 {
		return nil
	}
	rows := [][]string{{"TIME", "AFTER", "COMPONENT", "CONTAINER", "DECISION"}}
	day, before, subject := "", time.Time{}, decisions[0].Subject.UID
	for i, d := range decisions {
		if d.Subject.UID != subject {
			// Group decisions by pod UID: the times of two pods with one name may overlap.
			subject, before = d.Subject.UID, time.Time{}
			rows = append(rows, []string{fmt.Sprintf("%s, pod with UID %s:", d.Subject, d.Subject.UID)})
		}
		if date := d.Time.In(zone).Format(time.DateOnly); date != day {
			day = date
			rows = append(rows, []string{day})
		}
		after := ""
		if !before.IsZero() {
			after = "+" + explain.RoundDuration(max(0, d.Time.Sub(before))).String()
		}
		rows = append(rows, []string{d.Time.In(zone).Format("15:04:05.000"), after, d.Component, d.Container, d.Text})
		if d.Error != "" {
			rows = append(rows, []string{"", "", "", "", "  error: " + d.Error})
		}
		before = d.Time
		if d.Rounds > 0 { // it has the time of the first round
			before = decisions[i+1].Time
		}
	}
	var t table
	for _, r := range rows {
		if len(r) > 1 { // the others are headings
			t.measure(r)
		}
	}
	var lines []string
	for _, r := range rows {
		lines = append(lines, t.line(r))
	}
	return lines
}
