package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/agenttest"
)

const situations = "testdata/situations/*.txtar"

// TestSituations tells what the one screen of berth explain says in situations that users ask
// about: why it is so, by which rule, from which values, and what happens next.
func TestSituations(t *testing.T) { agenttest.RunStoriesWith(t, situations, explainAt) }

// TestSituationsHaveTheirPoints wants each point of each situation.
func TestSituationsHaveTheirPoints(t *testing.T) {
	files, err := filepath.Glob(situations)
	if err != nil || len(files) == 0 {
		t.Fatalf("no situations: %v", err)
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
