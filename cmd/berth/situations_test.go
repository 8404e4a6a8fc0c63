package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"berth/agent/agenttest"
	"berth/internal/explain"
	"berth/internal/record/journal"
)

const situations = "testdata/situations/*.txtar"

// TestSituations checks the screen that berth explain prints in situations that users ask about:
// the cause, the rule, the input values and the next event. The last screen of each situation is a
// golden file below testdata/screens; BERTH_UPDATE_GOLDEN writes them. A situation may say
// "# golden: without COMPONENT, REASON", whose decisions its screens then lack, and "# golden: any
// PATTERN, REASON", for whose matches its golden file has "…".
func TestSituations(t *testing.T) {
	files, err := filepath.Glob(situations)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if last := lastScreen(t, f, text); last != "" {
			for _, varies := range goldenAny.FindAllStringSubmatch(string(text), -1) {
				last = regexp.MustCompile(varies[1]).ReplaceAllString(last, "…")
			}
			goldenScreen(t, screenFile(strings.TrimSuffix(filepath.Base(f), ".txtar")), last)
		}
	}
}

// What a situation says of its golden file.
var (
	goldenWithout = regexp.MustCompile(`(?m)^# golden: without (\w+), \S`)
	goldenAny     = regexp.MustCompile(`(?m)^# golden: any (\S+), \S`)
)

// lastScreen runs a situation and returns its last screen: "" for a situation that -run excludes.
func lastScreen(t *testing.T, file string, text []byte) (last string) {
	agenttest.RunStoriesWith(t, file, func(dial func(context.Context) (net.Conn, error), subject string) (agenttest.Explained, error) {
		out, err := explainAs(dial, subject, func(e *explain.Report) {
			showToPeople(e)
			for i := range e.Stories {
				for _, without := range goldenWithout.FindAllSubmatch(text, -1) {
					e.Stories[i].Entries = slices.DeleteFunc(e.Stories[i].Entries, func(d journal.Entry) bool { return d.Component == string(without[1]) })
				}
			}
		})
		last = out.Screen
		return out, errors.Join(err, fitsScreen(out.Screen), hasPlainWords(out.Screen), hasPlainWords(out.All))
	})
	return last
}

// goldenScreen is goldenFile for a screen whose decisions may have another order within a second:
// they are made at once, by several goroutines.
func goldenScreen(t *testing.T, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil || sortSeconds(string(want)) != sortSeconds(got) {
		goldenFile(t, path, got)
	}
}

// sortSeconds sorts the last decisions of a screen within each second. A decision goes on in the
// indented lines below its own.
func sortSeconds(screen string) string {
	var rows []string
	second := func(row string) string { return row[:min(len(row), len(time.TimeOnly))] }
	decisions := false
	for line := range strings.SplitSeq(screen, "\n") {
		if decisions && strings.HasPrefix(line, " ") {
			rows[len(rows)-1] += "\n" + line
			continue
		}
		rows = append(rows, line)
		decisions = decisions || strings.HasPrefix(line, "The last decisions")
	}
	decisions = false
	for i := range rows {
		for j := i; decisions && j > 0 && second(rows[j]) == second(rows[j-1]) && rows[j] < rows[j-1]; j-- {
			rows[j], rows[j-1] = rows[j-1], rows[j]
		}
		decisions = decisions || strings.HasPrefix(rows[i], "The last decisions")
	}
	return strings.Join(rows, "\n")
}

func TestSortSeconds(t *testing.T) {
	const head = "b\na\n\nThe last decisions\n"
	got := sortSeconds(head + "00:00:01 b\n00:00:01 c\n00:00:01 a\n00:00:02 b\n00:00:01 a\n")
	golden(t, "screen", head+"00:00:01 a\n00:00:01 b\n00:00:01 c\n00:00:02 b\n00:00:01 a\n", got)
	got = sortSeconds(head + "00:00:01 b\n         of b\n00:00:01 a\n         of a\n")
	golden(t, "wrapped", head+"00:00:01 a\n         of a\n00:00:01 b\n         of b\n", got)
}

// screenFile returns the golden file of a situation's last screen.
func screenFile(situation string) string {
	return filepath.Join("testdata", "screens", situation+".txt")
}

// TestScreensHaveSituations finds golden files whose situation is gone.
func TestScreensHaveSituations(t *testing.T) {
	files, err := filepath.Glob(screenFile("*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d screens: %v", len(files), err)
	}
	for _, f := range files {
		situation := strings.TrimSuffix(filepath.Base(f), ".txt")
		if _, err := os.Stat(strings.Replace(situations, "*", situation, 1)); err != nil {
			t.Errorf("%s has no situation: %v", f, err)
		}
	}
}

func fitsScreen(screen string) error {
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	if len(lines) > screenRows {
		return fmt.Errorf("%d rows:\n%s", len(lines), screen)
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > screenWidth {
			return fmt.Errorf("a row is wider than %d columns: %s", screenWidth, l)
		}
	}
	return nil
}

// privateWords are those that the code has for things, and users do not; and units that nobody
// writes.
var privateWords = regexp.MustCompile(`(?i)\b(incarnations?|verdicts?|told|inbox|look-ahead|spec differ\w*|no source has|half way|thousandths|millicpus?)\b|\b\d+m CPU`)

func hasPlainWords(text string) error {
	if word := privateWords.FindString(text); word != "" {
		return fmt.Errorf("the word %q means nothing to users:\n%s", word, text)
	}
	return nil
}

func TestPrivateWordsAreFound(t *testing.T) {
	for _, text := range []string{"incarnation 2", "the verdict is", "told the API server", "2500m CPUs", "no source has the pod any more"} {
		if hasPlainWords(text) == nil {
			t.Errorf("%q passes", text)
		}
	}
	if err := errors.Join(fitsScreen("a\n"), hasPlainWords("it asks for 7 CPUs; 2 of 2 are free")); err != nil {
		t.Error(err)
	}
	if fitsScreen(strings.Repeat("a\n", screenRows+1)) == nil || fitsScreen(strings.Repeat("ä", screenWidth+1)) == nil {
		t.Error("what does not fit passes")
	}
}

// TestSituationsHaveTheirPoints wants each point of each situation.
func TestSituationsHaveTheirPoints(t *testing.T) {
	files, err := filepath.Glob(situations)
	if err != nil || len(files) < 60 {
		t.Fatalf("%d situations: %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); len(words) > 3 && words[0] == "expect-screen" {
				told[words[2]] = true
			}
		}
		for _, point := range agenttest.Points {
			if !told[point] {
				t.Errorf("%s does not say what is told as %s", f, point)
			}
		}
	}
}

// shownScreen is a screen in docs/explain*.md, below the name of its situation.
var shownScreen = regexp.MustCompile("<!-- situation: ([a-z0-9-]+) -->\n```text\n((?s:.*?))```\n")

// What differs in each run of a test: the folders of the agent, and the UIDs of its pods.
var (
	inTest = regexp.MustCompile(`/\S*/manifests/`)
	uids   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b`)
)

func withoutTest(text string) string {
	return uids.ReplaceAllString(inTest.ReplaceAllString(text, "/etc/berth/manifests/"), "00000000-0000-4000-8000-000000000001")
}

// showToPeople makes an explanation of a test that of a node that people have, in the same order
// each time: a sandbox and an image are there at once.
func showToPeople(e *explain.Report) {
	for _, p := range e.Pods {
		p.Status.Message = withoutTest(p.Status.Message)
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				if w := list[i].State.Waiting; w != nil {
					w.Message = withoutTest(w.Message)
				}
			}
		}
	}
	if e.Volumes != nil {
		e.Volumes.PluginRegistry = "/var/lib/berth/plugins_registry"
	}
	for i := range e.Stories {
		entries := e.Stories[i].Entries
		for i := range entries {
			entries[i].Why, entries[i].Error = withoutTest(entries[i].Why), withoutTest(entries[i].Error)
			entries[i].Count = 0 // how often the same was decided before anything else differs
		}
		slices.SortStableFunc(entries, func(a, b journal.Entry) int { return a.Time.Compare(b.Time) })
		for end := len(entries) - 1; end > 0; end-- {
			for i := range end {
				if a, b := &entries[i], &entries[i+1]; a.Time.Equal(b.Time) && isAfter(a, b) {
					*a, *b = *b, *a
				}
			}
		}
	}
}

// first returns the first word.
func first(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// isAfter reports whether a is shown after b, of two decisions that were made at once.
func isAfter(a, b *journal.Entry) bool {
	sandbox := func(e *journal.Entry) bool {
		return strings.HasPrefix(e.Decision, "sandbox ") && !strings.HasPrefix(e.Decision, "sandbox stopped")
	}
	switch {
	case a.Component == b.Component && a.Component != "event" && a.Container != "" && b.Container != "" && a.Container != b.Container:
		return first(a.Decision) == first(b.Decision) && a.Container > b.Container
	case sandbox(b):
		return a.Component == "image" || a.Component == "volume" || a.Decision == "FailedToRetrieveImagePullSecret"
	case b.Decision == "MissingClusterDNS": // it is of the sandbox
		return a.Component == "image" || a.Component == "volume"
	case b.Component == "image":
		return a.Component == "event" && a.Decision == "FailedCreatePodSandBox"
	case b.Component == "runtime" && (strings.HasPrefix(b.Decision, "container stopped") || strings.HasPrefix(b.Decision, "sandbox stopped")):
		return a.Component == "status" && (strings.HasPrefix(a.Decision, "terminated ") || strings.HasPrefix(a.Decision, "not ready"))
	case b.Component == "status" && strings.HasPrefix(b.Decision, "phase "):
		return a.Component == "status" && strings.HasPrefix(a.Decision, "not ready")
	}
	return false
}

// TestDocsShowScreens compares the screens of docs/explain.md and docs/explain-starts.md with the
// output of explain in their situations; BERTH_UPDATE_GOLDEN writes them.
func TestDocsShowScreens(t *testing.T) {
	shown := 0
	for _, page := range []string{"../../docs/explain.md", "../../docs/explain-starts.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		got := shownScreen.ReplaceAllStringFunc(string(text), func(block string) string {
			shown++
			name := shownScreen.FindStringSubmatch(block)[1]
			return fmt.Sprintf("<!-- situation: %s -->\n```text\n%s```\n", name, screenOf(t, name))
		})
		goldenFile(t, page, got)
	}
	if shown < 10 {
		t.Errorf("%d screens are shown", shown)
	}
}

// screenOf returns the golden screen of a situation.
func screenOf(t *testing.T, situation string) string {
	screen, err := os.ReadFile(screenFile(situation))
	if err != nil {
		t.Fatal(err)
	}
	return string(screen)
}
