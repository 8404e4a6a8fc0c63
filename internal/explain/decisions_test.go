package explain

import (
	"fmt"
	"strings"
	"testing"

	"berth/internal/record/journal"
)

// TestFoldRounds folds what comes again but for numbers, and nothing else.
func TestFoldRounds(t *testing.T) {
	for _, c := range []struct{ name, entries, want string }{
		{"nothing", "", ""},
		{"one", "a", "a"},
		{"again and again", "a1 a2 a3", "3*[a3]"},
		{"a round", "x a1 b1 a2 b2 y", "x 2*[a2 b2] y"},
		{"durations differ", "wait-10s wait-1m20s", "2*[wait-1m20s]"},
		{"a round cut off", "a b a b a", "2*[a b] a"},
		{"other words", "a b c", "a b c"},
		{"the longer cover wins", "a a b a a b", "2*[a a b]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var entries []journal.Entry
			for _, decision := range strings.Fields(c.entries) {
				entries = append(entries, journal.Entry{Component: "x", Decision: decision})
			}
			var got []string
			for _, r := range foldRounds(entries) {
				var texts []string
				for _, e := range r.entries {
					texts = append(texts, e.Decision)
				}
				text := strings.Join(texts, " ")
				if r.times > 1 {
					text = fmt.Sprintf("%d*[%s]", r.times, text)
				}
				got = append(got, text)
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
}
