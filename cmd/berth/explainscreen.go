package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// Screen size of the short form if the output is not a terminal.
const (
	screenWidth = 120
	screenRows  = 24
)

const (
	// headMost is the maximum number of rows for the headline and what happens next.
	headMost = 12
	// decisionsMost is the maximum number of decisions on the screen, decisionRows that of their
	// rows, and cellRows that of the rows of one.
	decisionsMost = 8
	decisionRows  = 12
	cellRows      = 3
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
			more := max(0, min(p.has, limit(p))-rows[i])
			more = min(more, left)
			rows[i] += more
			left -= more
		}
	}
	return rows
}

// printScreen prints the pod's state, what happens next, its start and the last decisions on one
// screen.
func printScreen(w io.Writer, e server.Explanation, now time.Time, zone *time.Location, width int) error {
	s := screen{newExplainer(e, now, zone)}
	for _, line := range s.lines(width) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

type screen struct{ explainer }

// lines returns at most screenRows lines of at most width columns.
func (s screen) lines(width int) []string {
	out := cutRows(s.head(width), headMost)
	decisions, log, steps, left := s.decisions(width), s.logTail(), 0, screenRows-len(out)
	began := waterfall(s)
	spans := began.spans()
	if n := len(spans); n > 0 {
		left -= 2 // a blank line and the title
		if spans[n-1].open {
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
		part{has: rowsOf(decisions), least: 6, most: decisionRows},
		part{has: len(log), least: 2, most: 5},
		part{has: steps, least: 4, most: steps})
	add := func(title string, lines []string) {
		if len(lines) > 0 {
			out = append(append(out, "", title), lines...)
		}
	}
	if start := began.start(rows[2]); len(start) > 0 {
		out = append(append(out, ""), start...)
	}
	add(s.logTitle(), lastOf(log, rows[1]))
	add(fmt.Sprintf("The last decisions; `berth explain %s --all` has all", s.timeline.Subject), lastBlocks(decisions, rows[0]))
	for i := range out {
		out[i] = cutTo(out[i], width)
	}
	return out
}

func lastOf(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

func rowsOf(blocks [][]string) (n int) {
	for _, b := range blocks {
		n += len(b)
	}
	return n
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

// cutMiddle shortens a text to most characters of its beginning and end, with an ellipsis between.
func cutMiddle(text string, most int) string {
	r := []rune(text)
	if len(r) <= most {
		return text
	}
	head := most / 3
	return string(r[:head]) + " … " + string(r[len(r)-(most-head):])
}

// head describes the pod's state, the cause, and what happens next.
func (s explainer) head(width int) []string {
	var b strings.Builder
	writeWrapped(&b, s.headline(), "", width)
	for _, n := range (coming{s}).next() {
		writeWrapped(&b, "Next: "+n, "      ", width)
	}
	for _, c := range s.e.Node {
		writeWrapped(&b, "The node: "+oneLine(c.Error)+heldFor(c, s.now)+s.withoutAPI(c), "      ", width)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// failedLast returns the last container exit if it failed and the pod is not ready.
func (s screen) failedLast() (journal.End, bool) {
	if len(s.timeline.Ends) == 0 || s.pod != nil && lifecycle.IsTrue(s.pod, v1.PodReady) {
		return journal.End{}, false
	}
	last := s.timeline.Ends[len(s.timeline.Ends)-1]
	return last, last.ExitCode != 0
}

// logTail returns the log tail of that container.
func (s screen) logTail() []string {
	last, _ := s.failedLast()
	return logLines(last.Log)
}

func (s screen) logTitle() string {
	last, _ := s.failedLast()
	return fmt.Sprintf("The last lines of container %q before it ended at %s", last.Container, s.at(last.Finished))
}

// decisions returns the rows of the last decisions about the pod, oldest first. Of repeated rounds
// it returns only the last.
func (s screen) decisions(width int) (blocks [][]string) {
	var rows [][]string
	said := map[string]time.Time{}
	add := func(at time.Time, cells ...string) { rows = append(rows, append([]string{s.at(at)}, cells...)) }
	for _, f := range lastFolds(foldRounds(withoutEchoes(s.timeline.Entries)), decisionsMost) {
		if f.rounds > 1 {
			add(f.since, "", "", f.heading())
		}
		for i := range f.entries {
			e := s.plainEntry(f.entries[i])
			e.Why = s.whyOnce(&e, said)
			add(e.Time, e.Component, e.Container, s.overtaken(&e)+joinNonEmpty(": ", entryText(e), s.errorOnce(&e, said)))
		}
	}
	var t table
	lines := t.lines(rows)
	cell := t.start(3) // column of the text
	for _, l := range lines {
		blocks = append(blocks, wrapped(l, cell, width))
	}
	return blocks
}

// lastFolds returns the last folds that fit into most rows, including the headings of rounds.
func lastFolds(folds []fold, most int) []fold {
	for i := len(folds) - 1; i >= 0; i-- {
		f := &folds[i]
		if f.rounds > 1 {
			most--
		}
		if len(f.entries) < most {
			most -= len(f.entries)
			continue
		}
		f.entries = f.entries[len(f.entries)-max(most, 1):]
		return folds[i:]
	}
	return folds
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

// cutTo truncates a line to width characters.
func cutTo(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
