package podconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is one YAML document or JSON value of a file.
type document struct {
	line int // of its first byte, from 1
	text []byte
}

// splitDocuments returns the documents of a manifest that hold something: YAML documents are separated by lines that begin with "---"
// or are "...", JSON values follow each other. A document of comments and directives only is none.
func splitDocuments(content []byte) []document {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	if docs, ok := splitJSON(content); ok {
		return docs
	}
	var docs []document
	line, start, first := 0, 0, 1
	var text []byte
	flush := func() {
		if hasContent(text) {
			docs = append(docs, document{line: first, text: text})
		}
	}
	for start < len(content) {
		line++
		end := len(content)
		if i := bytes.IndexByte(content[start:], '\n'); i >= 0 {
			end = start + i + 1
		}
		cur := content[start:end]
		start = end
		if rest, ok := cutSeparator(cur); ok {
			flush()
			text, first = nil, line
			cur = rest
		}
		text = append(text, cur...)
	}
	flush()
	return docs
}

// cutSeparator returns what follows a document marker on its line.
func cutSeparator(line []byte) (rest []byte, ok bool) {
	for _, marker := range []string{"---", "..."} {
		after, found := bytes.CutPrefix(line, []byte(marker))
		if found && (len(after) == 0 || bytes.IndexByte([]byte(" \t\r\n"), after[0]) >= 0) {
			return after, true
		}
	}
	return nil, false
}

// hasContent reports whether the YAML text is more than blanks, comments and directives.
func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// splitJSON returns the values of a file that begins like a JSON object and is JSON throughout.
func splitJSON(content []byte) ([]document, bool) {
	if !bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
		return nil, false
	}
	var docs []document
	dec := json.NewDecoder(bytes.NewReader(content))
	line, counted := 1, int64(0)
	for {
		var raw json.RawMessage
		if err := dec.Decode(&raw); errors.Is(err, io.EOF) {
			return docs, true
		} else if err != nil {
			return nil, false
		}
		begin := dec.InputOffset() - int64(len(raw))
		line += bytes.Count(content[counted:begin], []byte("\n"))
		counted = begin
		docs = append(docs, document{line: line, text: raw})
	}
}

// parse returns the document's object and what is doubtful about it. Numbers are int64 or float64; members that are null are dropped,
// since the API does not tell them from absent ones.
func (d document) parse() (object map[string]any, warnings []string, err error) {
	raw, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		strict := err
		if raw, err = yaml.YAMLToJSON(d.text); err != nil {
			return nil, nil, errors.New(d.explainYAML(err))
		}
		warnings = append(warnings, d.explainYAML(strict)+" (the last one counts)")
	}
	var value any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &value); err != nil {
		return nil, nil, fmt.Errorf("cannot be parsed: %w", err)
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("line %d: the document is %s, not an object with apiVersion, kind and metadata",
			d.line, jsonKind(value))
	}
	if items, ok := object["items"]; ok && items == nil {
		object["items"] = []any{} // as Go programs write a list without items
	}
	dropNulls(object)
	return object, warnings, nil
}

var yamlLine = regexp.MustCompile(`\bline (\d+):`)

// explainYAML returns the parser's message as one line, with line numbers of the file instead of the document.
func (d document) explainYAML(err error) string {
	msg := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:"} {
		msg = strings.TrimPrefix(msg, prefix)
	}
	msg = yamlLine.ReplaceAllStringFunc(msg, func(m string) string {
		n, err := strconv.Atoi(yamlLine.FindStringSubmatch(m)[1])
		if err != nil {
			return m
		}
		return fmt.Sprintf("line %d:", n+d.line-1)
	})
	var lines []string
	for line := range strings.Lines(msg) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if len(lines) == maxMessages {
			lines = append(lines, "and more")
			break
		}
		lines = append(lines, line)
	}
	return "invalid YAML: " + strings.Join(lines, "; ")
}

// stringMaps are the members of manifests whose values are maps of strings. A key without a value is there, with an empty one.
var stringMaps = []string{"labels", "annotations", "nodeSelector", "matchLabels", "data", "stringData", "binaryData"}

// dropNulls removes the members that are null, at every depth; in maps of strings they are empty strings.
func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, m := range v {
			if m == nil {
				delete(v, k)
				continue
			}
			if values, ok := m.(map[string]any); ok && slices.Contains(stringMaps, k) {
				for key, value := range values {
					if value == nil {
						values[key] = ""
					}
				}
			}
			dropNulls(m)
		}
	case []any:
		for _, m := range v {
			dropNulls(m)
		}
	}
}

// jsonKind names the kind of a JSON value for people.
func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	default:
		return "a number"
	}
}
