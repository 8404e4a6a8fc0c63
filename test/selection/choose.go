package main

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// A test of test/e2e.
type test struct {
	file string // relative to test/e2e
	name string
	tags string // of its build constraint beyond e2e, which `make e2e` does not set
}

// A choice is a test that runs, and the reason.
type choice struct {
	test
	why string
	far int // imports between a changed package and the group's; 0 for a changed one
}

// unknown is the assumed duration of a test that has no measured one.
const unknown = 15 * time.Second

// distances returns how many imports each package is away from the nearest changed one, over the
// reverse import graph: the changed ones are 0, their importers 1. Packages that no changed one
// reaches are absent.
func distances(imports map[string][]string, changed []string) map[string]int {
	importers := make(map[string][]string)
	for importer, imported := range imports {
		for _, p := range imported {
			importers[p] = append(importers[p], importer)
		}
	}
	far := make(map[string]int)
	for _, p := range changed {
		far[p] = 0
	}
	for level := changed; len(level) > 0; {
		var next []string
		for _, p := range level {
			for _, importer := range importers[p] {
				if _, seen := far[importer]; !seen {
					far[importer] = far[p] + 1
					next = append(next, importer)
				}
			}
		}
		level = next
	}
	return far
}

// computeChoices returns the tests to run in their order of precedence: those that always run,
// then the changed test files, then the tests of groups, nearest first and taken from each group
// in turn. A test is left out if the time of those before it and its own exceeds the budget;
// those that always run count, but are never left out.
func computeChoices(tests []test, far map[string]int, changedFiles []string, took map[string]time.Duration, budget time.Duration) (chosen []choice, left int) {
	var candidates []choice
	for _, t := range tests {
		if t.tags != "" {
			continue
		}
		switch {
		case slices.Contains(always, t.name):
			candidates = append(candidates, choice{test: t, why: "always", far: -2})
		case slices.Contains(changedFiles, "test/e2e/"+t.file):
			candidates = append(candidates, choice{test: t, why: "changed itself", far: -1})
		default:
			if c, ok := nearestGroup(t, far); ok {
				candidates = append(candidates, c)
			}
		}
	}
	candidates = interleave(candidates)
	var spent time.Duration
	for _, c := range candidates {
		d, measured := took[c.name]
		if !measured {
			d = unknown
		}
		if c.far != -2 && spent+d > budget {
			left++
			continue
		}
		spent += d
		chosen = append(chosen, c)
	}
	return chosen, left
}

// nearestGroup returns the choice of a test by the group of it that is nearest to the change.
func nearestGroup(t test, far map[string]int) (choice, bool) {
	best, found := choice{test: t}, false
	for _, g := range groups {
		if !g.has(t.file) {
			continue
		}
		for _, p := range slices.Sorted(maps.Keys(far)) {
			if g.covers(p) && (!found || far[p] < best.far) {
				best.far, found = far[p], true
				best.why = fmt.Sprintf("%s: %s changed", g.name, p)
				if far[p] > 0 {
					best.why = fmt.Sprintf("%s: %s is %d imports from a change", g.name, p, far[p])
				}
			}
		}
	}
	return best, found
}

// interleave orders choices by distance, and within a distance takes the first of each file,
// then the second of each.
func interleave(choices []choice) []choice {
	rank := make(map[string]int) // of a test within its file
	seen := make(map[string]int)
	slices.SortFunc(choices, func(a, b choice) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.name, b.name)) })
	for _, c := range choices {
		rank[c.file+c.name] = seen[c.file]
		seen[c.file]++
	}
	slices.SortStableFunc(choices, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(rank[a.file+a.name], rank[b.file+b.name]))
	})
	return choices
}

func (g group) has(file string) bool {
	return slices.ContainsFunc(g.files, func(pattern string) bool {
		ok, err := path.Match(pattern, file)
		return ok && err == nil
	})
}

func (g group) covers(folder string) bool {
	return slices.ContainsFunc(g.packages, func(p string) bool { return folder == p || strings.HasPrefix(folder, p+"/") })
}
