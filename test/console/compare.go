package console

import (
	"fmt"
	"regexp"
	"strings"
)

// Any stands for anything: alone on a line for any lines, in a line for any part of it.
const Any = "…"

// vary are what differs from run to run, and what stands for it.
var vary = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d`), "DATE"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`), "TIME"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(d|h|ms|µs|m|s))+\b`), "DURATION"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

func even(line string) string {
	for _, v := range vary {
		line = v.is.ReplaceAllString(line, v.as)
	}
	return strings.TrimSpace(line)
}

// Compare returns nil when the text is what the page shows. Times, durations, addresses and the
// width of columns may differ.
func Compare(want []string, text string) error {
	var pattern strings.Builder
	pattern.WriteString("^")
	for _, line := range trimEnd(want) {
		if strings.TrimSpace(line) == Any {
			pattern.WriteString(`(.*\n)*`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(even(line)), Any, ".*") + `\n`)
	}
	pattern.WriteString("$")
	var got strings.Builder
	for _, line := range trimEnd(strings.Split(text, "\n")) {
		got.WriteString(even(line) + "\n")
	}
	if !regexp.MustCompile(pattern.String()).MatchString(got.String()) {
		return fmt.Errorf("the page shows\n%s\nand it printed\n%s", strings.Join(want, "\n"), text)
	}
	return nil
}

// trimEnd returns the lines without empty ones at the end.
func trimEnd(lines []string) []string {
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}
