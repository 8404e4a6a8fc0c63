package main

import (
	"io"
	"strings"
	"unicode/utf8"
)

// columnGap is the space between columns, as in kubectl's output.
const columnGap = 3

// table aligns rows in columns. Its columns only grow, so that rows printed later (a watch) align
// with earlier ones.
type table struct {
	widths []int
}

func (t *table) measure(row []string) {
	for i, cell := range row {
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
	}
}

// line formats the row in columns, without a newline.
func (t *table) line(row []string) string {
	var b strings.Builder
	for i, cell := range row {
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+columnGap))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// start returns the first column of the cell with this index.
func (t *table) start(cell int) (n int) {
	for _, w := range t.widths[:min(cell, len(t.widths))] {
		n += w + columnGap
	}
	return n
}

func (t *table) lines(rows [][]string) []string {
	for _, r := range rows {
		t.measure(r)
	}
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = t.line(r)
	}
	return out
}

// printLines prints lines at once.
func printLines(w io.Writer, lines []string) error {
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}
