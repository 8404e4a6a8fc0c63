package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"berth/agent/agenttest"
	"berth/internal/record/journal"
)

const situations = "testdata/situations/*.txtar"

// TestSituations tells what the one screen of berth explain says in situations that users ask
// about: why it is so, by which rule, from which values, and what happens next.
func TestSituations(t *testing.T) { agenttest.RunStoriesWith(t, situations, explainSituation) }

// explainSituation is explainAt for a screen that users read as it is.
func explainSituation(dial func(context.Context) (net.Conn, error), subject string) (agenttest.Explained, error) {
	out, err := explainAt(dial, subject)
	return out, errors.Join(err, fitsScreen(out.Screen), hasPlainWords(out.Screen), hasPlainWords(out.All))
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

// shownScreen is a screen in docs/explain.md, below the name of its situation.
var shownScreen = regexp.MustCompile("<!-- situation: ([a-z0-9-]+) -->\n```text\n((?s:.*?))```\n")

// What differs in each run of a test: the folder of its manifests, and the UIDs of its pods.
var (
	inTest = regexp.MustCompile(`/\S*/manifests/`)
	uids   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
)

// showToPeople makes the decisions of a test those of a node that people have, in the same order
// each time: a sandbox and an image are there at once.
func showToPeople(entries []journal.Entry) {
	for i := range entries {
		for _, text := range []*string{&entries[i].Why, &entries[i].Error} {
			*text = uids.ReplaceAllString(inTest.ReplaceAllString(*text, "/etc/berth/manifests/"), "00000000-0000-4000-8000-000000000001")
		}
	}
	for end := len(entries) - 1; end > 0; end-- {
		for i := range end {
			a, b := &entries[i], &entries[i+1]
			if (a.Component == "image" || a.Decision == "FailedToRetrieveImagePullSecret") && b.Decision == "sandbox created" && a.Time.Equal(b.Time) {
				*a, *b = *b, *a
			}
		}
	}
}

// TestDocsShowScreens holds the screens of docs/explain.md to what explain says in their
// situations; BERTH_UPDATE_GOLDEN writes them.
func TestDocsShowScreens(t *testing.T) {
	const page = "../../docs/explain.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	got := shownScreen.ReplaceAllStringFunc(string(text), func(block string) string {
		shown++
		name := shownScreen.FindStringSubmatch(block)[1]
		return fmt.Sprintf("<!-- situation: %s -->\n```text\n%s```\n", name, screenOf(t, name))
	})
	if shown < 10 {
		t.Errorf("%d screens are shown", shown)
	}
	goldenFile(t, page, got)
}

// screenOf is the last screen of a situation.
func screenOf(t *testing.T, situation string) string {
	var screen string
	agenttest.RunStoriesWith(t, strings.Replace(situations, "*", situation, 1), func(dial func(context.Context) (net.Conn, error), subject string) (agenttest.Explained, error) {
		out, err := explainAs(dial, subject, showToPeople)
		screen = out.Screen
		return out, err
	})
	return screen
}
