package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"berth/internal/pod"
)

// The line that is named is the one that its author has to change. In each text it has the mark
// "<", which is taken out.
func TestLinesOfFaults(t *testing.T) {
	const (
		top     = "# a comment\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n"
		indent  = "the line does not stand below what it belongs to: compare its indentation with that of the lines above"
		tab     = "the line is indented by a tab: use spaces"
		colon   = "put text that has a colon in it in quotes"
		deeper  = "the line is indented more than the fields beside it"
		bracket = "did not find expected ',' or ']': a [ is not closed, or a comma is missing"
	)
	for _, tc := range []struct{ name, text, want string }{
		{"a tab", top + "<\tcontainers:\n\t- name: c\n", tab},
		{"a tab after spaces", top + "  containers:\n  - name: c\n    args:\n<    \t- a\n", tab},
		{"a tab where text goes on", top + "  containers:\n  - name: c\n<\timage: x\n", tab},
		{"too deep", top + "  containers:\n  - name: c\n<     image: x\n    args: []\n", deeper},
		{"not deep enough, the first of a list", top + "  containers:\n    - name: c\n<     image: x\n", indent},
		{"not deep enough, a later one", top + "  containers:\n    - name: c\n      image: x\n<     command: [x]\n", indent},
		{"spec below metadata", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n< spec:\n  containers: []\n", indent},
		{"another item not as deep", top + "  containers:\n    - name: c\n      image: x\n<  - name: d\n    image: y\n", indent},
		{"an argument not as deep", top + "  containers:\n  - name: c\n    args:\n      - a\n<     - b\n", indent},
		{"after blank lines", top + "  containers:\n    - name: c\n      image: x\n\n  # two\n<  - name: d\n", indent},
		{"a list that is open", top + "  containers:\n  - name: c\n<    args: [a\n    env: []\n", bracket},
		{"an object that is open", top + "<  containers: [{name: c]\n", "did not find expected ',' or '}': a { is not closed, or a comma is missing"},
		{"a quote that is open", top + "  containers:\n  - name: c\n<    image: \"x\n    args: []\n", "a quote is not closed"},
		{"no blank after a colon", "apiVersion: v1\n<kind:Pod\nmetadata:\n  name: a\n", "a space must follow the colon, as in name: value"},
		{"no colon", top + "  containers:\n  - name: c\n<    image\n    args: []\n", "a field is written as name: value"},
		{"text with a colon", top + "  containers:\n  - name: c\n<    args: sh -c: x\n", colon},
		{"text with a sign", top + "  containers:\n  - name: c\n    args:\n<    - @x\n", "put text that begins with such a character in quotes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line := strings.Count(tc.text[:strings.Index(tc.text, "<")], "\n") + 1
			text := strings.Replace(tc.text, "<", "", 1)
			got := Decoder{Node: node}.Decode(Origin{pod.FileSource, "/m/a.yaml"}, []byte(text))
			if len(got.Problems) != 1 || !strings.HasPrefix(got.Problems[0].Message, fmt.Sprintf("invalid YAML: line %d: ", line)) || !strings.HasSuffix(got.Problems[0].Message, tc.want) {
				t.Errorf("got  %s\nwant line %d, %s", messages(got.Problems), line, tc.want)
			}
		})
	}
}

func TestUnknownFields(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
	const pods = head + "spec: {containers: [{name: c, image: i, imgae: j}]}\n"
	d := Decoder{Node: node}
	from := Origin{pod.FileSource, "/m/a.yaml"}
	if got := d.Decode(from, []byte(pods)); len(got.Objects) != 0 || got.Refusal() < 0 {
		t.Errorf("refused: %v", got)
	}
	d.AllowUnknownFields = true
	got := d.Decode(from, []byte(pods))
	if len(got.Objects) != 1 || messages(got.Problems) != `a.yaml warning: unknown field "spec.containers[0].imgae" is ignored (did you mean "image"?)` {
		t.Errorf("allowed: %v, %s", got.Objects, messages(got.Problems))
	}
	// What was accepted is not refused when it is read again.
	d.AllowUnknownFields = false
	kept, err := d.Restore(from, []json.RawMessage{got.Objects[0].Document})
	if err != nil || len(kept) != 1 {
		t.Errorf("restored: %v, %v", kept, err)
	}
}
