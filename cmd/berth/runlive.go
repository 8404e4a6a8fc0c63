package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"
	v1 "k8s.io/api/core/v1"

	"berth/agent"
	"berth/internal/api/server"
	"berth/internal/pod/lifecycle"
	"berth/internal/source/manifest"
)

// Control sequences (ECMA-48, and the synchronized output mode 2026, which terminals without it
// ignore).
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	beginFrame = "\x1b[?2026h"
	endFrame   = "\x1b[?2026l"
	cursorUp   = "\x1b[%dA"
	clearLine  = "\x1b[K" // from the cursor to the end of the line
	clearBelow = "\x1b[J" // from the cursor to the end of the screen
)

// framePause is the minimum time between two frames. It merges bursts of changes.
const framePause = 50 * time.Millisecond

// liveView redraws a table of the pods in place.
type liveView struct {
	h        server.Handlers
	hints    hints
	terminal *os.File
	node     string
	logPath  string

	ending atomic.Bool
	wake   chan struct{} // capacity 1; redraw without a change of a pod

	drawn []string // the last frame
}

func newLiveView(h server.Handlers, hints hints, terminal *os.File, cfg agent.Config) *liveView {
	return &liveView{h: h, hints: hints, terminal: terminal, node: cfg.NodeName, wake: make(chan struct{}, 1)}
}

func (v *liveView) run(ctx context.Context) error {
	changed, cancel := v.h.Pods.Subscribe()
	defer cancel()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	if err := v.write(hideCursor); err != nil {
		return err
	}
	defer v.restore()
	for {
		now := time.Now()
		pods := v.h.Pods.List()
		if err := v.draw(pods, v.h.Explain.Problems(), now); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		redraw := time.NewTimer(nextRedraw(pods, now))
		select {
		case <-changed.Wake():
		case <-resized:
			v.drawn = nil // the terminal has reflowed the lines: redraw below them
		case <-v.wake:
		case <-redraw.C:
		case <-ctx.Done():
		}
		redraw.Stop()
		pause := time.NewTimer(framePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		changed.Take()
	}
}

func (v *liveView) stopping() {
	v.ending.Store(true)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func (v *liveView) restore() {
	// A write error is ignored: the terminal may be closed.
	_ = v.write(showCursor)
}

func (v *liveView) write(s string) error {
	if _, err := v.terminal.WriteString(s); err != nil {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}

func (v *liveView) draw(pods []*v1.Pod, problems []manifest.Problem, now time.Time) error {
	width, height, err := term.GetSize(int(v.terminal.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	f := frame{
		head: v.head(),
		rows: liveRows(pods, problems, now),
		foot: v.foot(pods, problems),
	}
	lines := f.fit(width, height)
	update := redrawFrom(v.drawn, lines)
	v.drawn = lines
	if update == "" {
		return nil
	}
	return v.write(update)
}

func (v *liveView) head() []string {
	ver := v.h.Agent.Version()
	runtime := "starting the runtime"
	if ver.RuntimeName != "" {
		runtime = ver.RuntimeName + " " + ver.RuntimeVersion
	}
	return []string{strings.Join([]string{"berth " + ver.Version, "node " + v.node, runtime}, " · "), ""}
}

// liveRows returns the table with its header: kubectl's columns and the address.
func liveRows(pods []*v1.Pod, problems []manifest.Problem, now time.Time) []string {
	rows := podRows(pods, problems, now)
	if len(rows) == 1 {
		return []string{"no pods yet"}
	}
	rows[0] = append(rows[0], "IP")
	for i, p := range pods {
		rows[i+1] = append(rows[i+1], orNone(lifecycle.FirstIP(p)))
	}
	var t table
	return t.lines(rows)
}

func (v *liveView) foot(pods []*v1.Pod, problems []manifest.Problem) []string {
	foot := []string{""}
	for _, p := range problems {
		foot = append(foot, problemLine(p))
	}
	if len(problems) > 0 {
		foot = append(foot, "")
	}
	if len(pods) > 0 {
		for _, h := range v.hints.lines(pods) {
			foot = append(foot, "  "+h)
		}
		foot = append(foot, "")
	}
	last := "Ctrl-C ends the agent; the pods go on running."
	switch {
	case v.ending.Load():
		last = "Stopping; Ctrl-C again ends the agent at once."
	case v.hints.remove:
		last = "Ctrl-C ends the agent and removes the pods."
	}
	return append(foot, "log: "+v.logPath, last)
}

// frame is the content of the screen.
type frame struct {
	head, rows, foot []string // rows[0] is the table's header, if there is a table
}

// fit returns the frame's lines for a terminal of this size. It replaces the rows that do not fit
// by their count, and then drops the foot. One line stays free for the cursor.
func (f frame) fit(width, height int) []string {
	space := max(height-1-len(f.head), 2)
	foot := f.foot
	if len(f.rows)+len(foot) > space && len(foot) > space/2 {
		foot = nil
	}
	rows := f.rows
	if room := max(space-len(foot), 2); len(rows) > room {
		left := fmt.Sprintf("… and %d more", len(rows)-(room-1))
		rows = append(rows[:room-1:room-1], left)
	}
	var lines []string
	for _, part := range [][]string{f.head, rows, foot} {
		for _, l := range part {
			lines = append(lines, clip(l, width))
		}
	}
	return lines
}

// clip truncates the line to the width: a wrapped line would break redrawing.
func clip(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:max(0, width-1)]) + "…"
	}
	return line
}

// redrawFrom returns the output that replaces the old lines; the cursor is below them before and
// after. It clears only what it writes at once, to avoid flicker.
func redrawFrom(old, lines []string) string {
	same := len(old) == len(lines)
	for i := 0; same && i < len(lines); i++ {
		same = old[i] == lines[i]
	}
	if same {
		return ""
	}
	var b strings.Builder
	b.WriteString(beginFrame + "\r")
	if len(old) > 0 {
		fmt.Fprintf(&b, cursorUp, len(old))
	}
	for _, l := range lines {
		b.WriteString(l + clearLine + "\r\n")
	}
	b.WriteString(clearBelow + endFrame)
	return b.String()
}

// nextRedraw returns how long the ages in the table stay valid: duration.HumanDuration shows
// seconds up to ten minutes, then minutes.
func nextRedraw(pods []*v1.Pod, now time.Time) time.Duration {
	for _, p := range pods {
		if t := created(p); !t.IsZero() && now.Sub(t.Time) < 10*time.Minute {
			return time.Second
		}
	}
	return time.Minute
}
