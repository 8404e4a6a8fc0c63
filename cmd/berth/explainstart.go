package main

import (
	"slices"
	"strings"
	"time"

	"berth/internal/explain"
)

// barWidth is the maximum width of a bar in columns.
const barWidth = 30

// startLines draws the waterfall of the pod's first start in at most most rows below two headings:
// the completion time of each step, and the time since the previous one as a bar. Without rows, it
// returns the title.
func startLines(a explain.Answer, zone *time.Location, most int) []string {
	if len(a.Start) == 0 {
		return nil
	}
	if most == 0 {
		return []string{a.StartText}
	}
	first, whole := a.Start[0].To, a.Start[len(a.Start)-1].To.Sub(a.Start[0].To)
	rows := [][]string{{"STEP", "CONTAINER", "AT", "SO FAR", ""}}
	for _, s := range joinSteps(a.Start, most) {
		at := s.To.In(zone).Format("15:04:05.000")
		if s.Open {
			at = "under way"
		}
		rows = append(rows, []string{s.Name, s.Container, at, "+" + explain.RoundDuration(s.To.Sub(first)).String(), bar(s, first, whole)})
	}
	var t table
	return append([]string{a.StartText}, t.lines(rows)...)
}

// joinSteps joins the shortest neighbours until at most most rows remain.
func joinSteps(steps []explain.Step, most int) []explain.Step {
	out := slices.Clone(steps)
	for len(out) > max(most, 2) {
		least := 0
		for i := range len(out) - 2 { // the last row stays separate
			if out[i+1].To.Sub(out[i].From) < out[least+1].To.Sub(out[least].From) {
				least = i
			}
		}
		a, b := out[least], out[least+1]
		first, _, _ := strings.Cut(a.Name, " … ")
		if _, last, joined := strings.Cut(b.Name, " … "); joined {
			b.Name = last
		}
		joined := explain.Step{Name: first + " … " + b.Name, From: a.From, To: b.To}
		if a.Container == b.Container || a.Container == "" {
			joined.Container = b.Container
		}
		out = slices.Replace(out, least, least+2, joined)
	}
	return out
}

// bar draws the step as a part of the whole duration, which began at first.
func bar(s explain.Step, first time.Time, whole time.Duration) string {
	if whole <= 0 || !s.To.After(s.From) {
		return ""
	}
	from, to := int(s.From.Sub(first)*barWidth/whole), int(s.To.Sub(first)*barWidth/whole)
	switch {
	case from == to:
		return strings.Repeat(" ", min(from, barWidth-1)) + "▏"
	case s.Open:
		return strings.Repeat(" ", from) + strings.Repeat("░", to-from)
	}
	return strings.Repeat(" ", from) + strings.Repeat("█", to-from)
}
