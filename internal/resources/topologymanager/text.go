package topologymanager

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// shown is the maximum number of hints of a resource in a description: there may be hundreds.
const shown = 6

// describe describes hints and their merge in one line: "cpu {0},{1}, else {0,1}; example.com/gpu
// {1}; merged {1} preferred".
func describe(providers []Hints, merged Hint) string {
	var parts []string
	for _, hints := range providers {
		for _, name := range hints.resources() {
			parts = append(parts, string(name)+" "+describeHints(hints[name]))
		}
	}
	if parts == nil {
		parts = []string{"nothing has a preference"}
	}
	result := "merged " + describeNodes(merged.Nodes)
	if merged.Preferred {
		result += " preferred"
	} else {
		result += " not preferred"
	}
	return strings.Join(append(parts, result), "; ")
}

func describeHints(list []Hint) string {
	switch {
	case list == nil:
		return "anywhere"
	case len(list) == 0:
		return "nowhere"
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Hint) int {
		if a.Preferred != b.Preferred {
			if a.Preferred {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Nodes.Count(), b.Nodes.Count()), cmp.Compare(a.Nodes, b.Nodes))
	})
	var text strings.Builder
	for i, h := range list {
		if i == shown {
			fmt.Fprintf(&text, " and %d more", len(list)-shown)
			break
		}
		switch {
		case !h.Preferred && (i == 0 || list[i-1].Preferred):
			if i > 0 {
				text.WriteString(", ")
			}
			text.WriteString("else ")
		case i > 0:
			text.WriteString(",")
		}
		text.WriteString(describeNodes(h.Nodes))
	}
	return text.String()
}

func describeNodes(n Nodes) string {
	if n == 0 {
		return "anywhere"
	}
	return n.String()
}
