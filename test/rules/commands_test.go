package rules

import (
	"fmt"
	"slices"
	"strings"

	"berth/test/console"
)

// blockLanguages are those that a fenced block of a page may have.
var blockLanguages = []string{"console", "go", "ini", "json", "promql", "sh", "text", "toml", "yaml"}

func checkCommands(t tree) []string {
	tests, targets := map[string]bool{}, map[string]bool{}
	for _, f := range t.files {
		for _, line := range f.lines() {
			if name, ok := strings.CutPrefix(line, "func Test"); ok && within(f.path, "test") && strings.HasSuffix(f.path, "_test.go") && strings.Contains(string(f.text), "console.Read(") {
				name, _, _ = strings.Cut(name, "(")
				tests["Test"+name] = true
			}
			if target, rest, ok := strings.Cut(line, ":"); ok && f.path == "Makefile" && strings.Contains(rest, "## ") {
				targets["make "+target] = true
			}
		}
	}
	var found []string
	for _, f := range t.files {
		if !strings.HasSuffix(f.path, ".md") {
			continue
		}
		blocks, err := console.Parse(f.path, string(f.text))
		if err != nil {
			found = append(found, err.Error())
		}
		for _, b := range blocks {
			for _, fault := range faultsOfBlock(b, tests, targets) {
				found = append(found, fmt.Sprintf("%s:%d: %s", b.File, b.Line, fault))
			}
		}
	}
	return found
}

func faultsOfBlock(b console.Block, tests, targets map[string]bool) (faults []string) {
	hidden := slices.ContainsFunc(b.Text, func(line string) bool { return strings.HasPrefix(line, "$ ") })
	switch {
	case b.Lang == "":
		faults = append(faults, "the block does not say its language")
	case !slices.Contains(blockLanguages, b.Lang):
		faults = append(faults, fmt.Sprintf("the block is of %s, not of %s", b.Lang, strings.Join(blockLanguages, ", ")))
	case !b.Commands() && b.RunBy+b.NotRun != "":
		faults = append(faults, "the block has no commands that could be run")
	case !b.Commands() && hidden:
		faults = append(faults, "the block has commands, which nobody runs")
	}
	if b.RunBy != "" && !tests[b.RunBy] && !targets[b.RunBy] {
		faults = append(faults, b.RunBy+" is no test below test/ that types the commands of pages, and no target of make")
	}
	return faults
}
