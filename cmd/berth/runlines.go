package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/source/manifest"
)

// lineView prints a line per change, for output that is not a terminal.
type lineView struct {
	h     server.Handlers
	hints hints

	out     io.Writer
	table   table
	printed map[pod.UID]printedLine
	// unsettled are the pods that are not ready yet.
	unsettled map[pod.UID]bool
	refused   map[string]bool // lines of problems
	hinted    bool

	mu sync.Mutex // guards writes to out
}

type printedLine struct {
	name string
	text string // without the name, to detect changes
}

func newLineView(h server.Handlers, hints hints, out io.Writer) *lineView {
	return &lineView{h: h, hints: hints, out: out, printed: map[pod.UID]printedLine{}, unsettled: map[pod.UID]bool{}, refused: map[string]bool{}}
}

func (v *lineView) run(ctx context.Context) error {
	changed, cancel := v.h.Pods.Subscribe()
	defer cancel()
	err := v.refresh(v.h.Pods.List(), v.h.Explain.Problems(), time.Now())
	for err == nil {
		select {
		case <-changed.Wake():
			err = v.take(changed.Take(), v.h.Explain.Problems(), time.Now())
		case <-ctx.Done():
			// Print the last changes too.
			return v.refresh(v.h.Pods.List(), v.h.Explain.Problems(), time.Now())
		}
	}
	return err
}

// refresh prints the changes of all pods since the last call.
func (v *lineView) refresh(pods []*v1.Pod, problems []manifest.Problem, now time.Time) error {
	var lines []string
	there := map[pod.UID]bool{}
	for _, p := range pods {
		there[p.UID] = true
		lines = append(lines, v.podLines(p, now)...)
	}
	for uid := range v.printed {
		if !there[uid] {
			lines = append(lines, v.gone(uid)...)
		}
	}
	return v.print(slices.Concat(lines, v.problemLines(problems), v.readyLines(pods)))
}

// take prints the changes of the given pods. With many pods, refresh would read all of them for
// each change of one.
func (v *lineView) take(uids []pod.UID, problems []manifest.Problem, now time.Time) error {
	var lines []string
	for _, uid := range uids {
		if p, there := v.h.Pods.Get(uid); there {
			lines = append(lines, v.podLines(p, now)...)
		} else {
			lines = append(lines, v.gone(uid)...)
		}
	}
	lines = append(lines, v.problemLines(problems)...)
	if !v.hinted && len(v.unsettled) == 0 {
		lines = append(lines, v.readyLines(v.h.Pods.List())...)
	}
	return v.print(lines)
}

// readyLines returns the hints once, when all pods are ready.
func (v *lineView) readyLines(pods []*v1.Pod) []string {
	if ready, _ := computeVerdict(pods, nil); !ready || v.hinted {
		return nil
	}
	v.hinted = true
	hints := v.hints.lines(pods)
	if len(hints) == 0 {
		return []string{"", "All pods are ready.", ""}
	}
	lines := []string{"", "All pods are ready:"}
	for _, h := range hints {
		lines = append(lines, "  "+h)
	}
	return append(lines, "")
}

// podLines returns the pod's line if it has changed.
func (v *lineView) podLines(p *v1.Pod, now time.Time) []string {
	if isSettled(p) {
		delete(v.unsettled, p.UID)
	} else {
		v.unsettled[p.UID] = true
	}
	if line, changed := v.podLine(p, now); changed {
		return []string{line}
	}
	return nil
}

// gone returns the line of a deleted pod.
func (v *lineView) gone(uid pod.UID) []string {
	delete(v.unsettled, uid)
	s, told := v.printed[uid]
	if !told {
		return nil
	}
	delete(v.printed, uid)
	return v.table.lines([][]string{{s.name, "Gone"}})
}

// podLine returns the pod's line and whether there is one. A pod that the agent has not observed
// yet has none; it may have been running for long.
func (v *lineView) podLine(p *v1.Pod, now time.Time) (string, bool) {
	if s := &p.Status; len(s.Conditions)+len(s.ContainerStatuses) == 0 && !pod.IsTerminal(s.Phase) {
		return "", false
	}
	row := computePodRow(p, now)
	name := row.Name
	if row.Namespace != "default" {
		name = row.Namespace + "/" + row.Name
	}
	cells := []string{name, row.Status, row.Ready, lifecycle.FirstIP(p)}
	if n := lifecycle.Summarize(p).Restarts; n > 0 {
		cells = append(cells, fmt.Sprintf("restarts %d", n))
	}
	text := strings.Join(cells[1:], " ")
	if v.printed[p.UID].text == text {
		return "", false
	}
	v.printed[p.UID] = printedLine{name: name, text: text}
	return v.table.lines([][]string{cells})[0], true
}

// problemLines returns the new and the resolved problems.
func (v *lineView) problemLines(problems []manifest.Problem) []string {
	var lines []string
	now := map[string]bool{}
	for _, p := range problems {
		line := problemLine(p)
		now[line] = true
		if v.refused[line] {
			continue
		}
		if p.Severity == manifest.SeverityError {
			lines = append(lines, statusInvalidManifest+"  "+line)
		} else {
			lines = append(lines, line)
		}
	}
	var gone []string
	for line := range v.refused {
		if !now[line] {
			gone = append(gone, "no longer: "+line)
		}
	}
	slices.Sort(gone)
	v.refused = now
	return append(lines, gone...)
}

func (v *lineView) print(lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := io.WriteString(v.out, strings.Join(lines, "\n")+"\n")
	return err
}

func (v *lineView) stopping() {
	// The next refresh reports an error.
	_ = v.print([]string{"Stopping the agent; a second signal ends it at once."})
}

func (v *lineView) restore() {}
