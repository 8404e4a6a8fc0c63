package manifest

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
)

var (
	yamlLine = regexp.MustCompile(`\bline (\d+):`)
	// The parser prints the Go values of invalid keys.
	objectKey = regexp.MustCompile(`(?s)^invalid map key: .*`)
	nullKey   = regexp.MustCompile(`(?s)^unsupported map key of type: .*`)
)

// explainYAML returns the parser's messages as one line, with line numbers of the file instead of
// the document.
func (d document) explainYAML(messages []string) string {
	var out []string
	for _, msg := range messages[:min(len(messages), maxMessages+1)] {
		msg = strings.TrimPrefix(msg, "yaml: ")
		msg = objectKey.ReplaceAllString(msg, "invalid map key: an object or a list; a template ({{ … }}) must be filled in first")
		msg = nullKey.ReplaceAllString(msg, "invalid map key: neither text nor a number; put it in quotes")
		msg = yamlLine.ReplaceAllStringFunc(msg, func(m string) string {
			n := lineNumber(m)
			if n == 0 {
				return m
			}
			return fmt.Sprintf("line %d:", n+d.line-1)
		})
		out = append(out, strings.Join(strings.Fields(msg), " "))
	}
	return "invalid YAML: " + joinMessages(out)
}

// lineNumber returns the line number in the parser's message, 0 if it has none.
func lineNumber(message string) int {
	m := yamlLine.FindStringSubmatch(message)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return n
}

// yamlFault is a syntax error: how to find the line to change, and how to change it.
type yamlFault struct {
	message string // the parser's message
	// line returns the line to change from the line numbers of two parsers: one reports where it
	// stopped, the other where the unfinished construct began; both count some from 0.
	line func(stopped, began int) int
	// hint returns how to change the line, "" if unknown.
	hint func(line string) string
}

var yamlFaults = []yamlFault{
	{message: "did not find expected key", line: nextLine, hint: hintIndentation},
	{message: "did not find expected '-' indicator", line: nextLine, hint: hintIndentation},
	{message: "did not find expected ',' or ']'", line: beginLine, hint: func(string) string { return "a [ is not closed, or a comma is missing" }},
	{message: "did not find expected ',' or '}'", line: beginLine, hint: func(string) string { return "a { is not closed, or a comma is missing" }},
	{message: "found unexpected end of stream", line: startLine, hint: func(string) string { return "a quote is not closed" }},
	{message: "could not find expected ':'", line: startLine, hint: hintColon},
	{message: "mapping values are not allowed in this context", line: stopLine, hint: hintMapping},
	{message: "found character that cannot start any token", line: stopLine, hint: hintCharacter},
	{message: "found a tab character", line: stopLine, hint: hintCharacter},
}

func nextLine(stopped, _ int) int { return stopped + 1 }
func stopLine(stopped, _ int) int { return stopped }
func startLine(_, began int) int  { return began }
func beginLine(_, began int) int  { return began + 1 }
func hintIndentation(string) string {
	return "the line does not stand below what it belongs to: compare its indentation with that of the lines above"
}

func hintColon(line string) string {
	if strings.Contains(line, ":") {
		return "a space must follow the colon, as in name: value"
	}
	return "a field is written as name: value"
}

func hintMapping(line string) string {
	if _, value, ok := strings.Cut(line, ": "); ok && strings.Contains(value, ": ") {
		return "put text that has a colon in it in quotes"
	}
	return "the line is indented more than the fields beside it"
}

func hintCharacter(line string) string {
	blanks := line[:len(line)-len(strings.TrimLeft(line, " \t-"))]
	if strings.Contains(blanks, "\t") {
		return "the line is indented by a tab: use spaces"
	}
	return "put text that begins with such a character in quotes"
}

// explainSyntax returns the parser's message for invalid YAML, with the line to change and what is
// wrong there.
func (d document) explainSyntax(message string) string {
	stopped := lineNumber(message)
	i := slices.IndexFunc(yamlFaults, func(f yamlFault) bool { return strings.Contains(message, f.message) })
	if i < 0 || stopped == 0 {
		return d.explainYAML([]string{message})
	}
	fault, began := yamlFaults[i], stopped
	if err := yaml3.Unmarshal(d.text, new(yaml3.Node)); err != nil && strings.Contains(err.Error(), fault.message) {
		began = lineNumber(err.Error())
	}
	lines := slices.Collect(yamlLines(d.text))
	n := min(max(1, fault.line(stopped, began)), len(lines))
	for n > 1 && len(bytes.TrimSpace(lines[n-1])) == 0 { // skip blank lines at the end
		n--
	}
	message = yamlLine.ReplaceAllLiteralString(message, fmt.Sprintf("line %d:", n))
	if hint := fault.hint(string(lines[n-1])); hint != "" {
		message += ": " + hint
	}
	return d.explainYAML([]string{message})
}
