package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	yaml2 "go.yaml.in/yaml/v2"
	yaml3 "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxYAMLValues limits the lines and commas of one YAML document: the parser uses some hundred
// bytes for each value. Ordinary files stay below it.
const maxYAMLValues = 500_000

// document is one YAML document or JSON value of a file.
type document struct {
	line int // of its first byte, from 1
	text []byte
}

// splitDocuments returns the non-empty documents of a manifest: YAML documents are separated by
// lines that begin with "---" or are "...", JSON values follow each other. A document of comments
// and directives only is empty.
func splitDocuments(content []byte) []document {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	if docs, ok := splitJSON(content); ok {
		return docs
	}
	var docs []document
	var text []byte
	line, first := 0, 1
	flush := func() {
		if hasContent(text) {
			docs = append(docs, document{line: first, text: text})
		}
	}
	for cur := range yamlLines(content) {
		line++
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

// lineEnds are the line breaks of YAML 1.1, the longest first.
var lineEnds = []string{"\r\n", "\n", "\r", "\u0085", "\u2028", "\u2029"}

// yamlLines yields the lines of YAML as its parser counts them, including line breaks.
func yamlLines(content []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(content) > 0 {
			end := len(content)
			if i := bytes.IndexAny(content, "\n\r\u0085\u2028\u2029"); i >= 0 {
				end = i + lineEnd(content[i:])
			}
			if !yield(content[:end]) {
				return
			}
			content = content[end:]
		}
	}
}

// lineEnd returns the length of the line break at the beginning of the text, 0 if there is none.
func lineEnd(text []byte) int {
	for _, end := range lineEnds {
		if bytes.HasPrefix(text, []byte(end)) {
			return len(end)
		}
	}
	return 0
}

// cutSeparator returns the text after a document marker on its line.
func cutSeparator(line []byte) (rest []byte, ok bool) {
	for _, marker := range []string{"---", "..."} {
		after, found := bytes.CutPrefix(line, []byte(marker))
		if found && (len(after) == 0 || after[0] == ' ' || after[0] == '\t' || lineEnd(after) > 0) {
			return after, true
		}
	}
	return nil, false
}

// hasContent reports whether the YAML text has more than blanks, comments and directives.
func hasContent(text []byte) bool {
	for line := range yamlLines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// splitJSON returns the values of a file that begins like a JSON object and is entirely JSON.
func splitJSON(content []byte) ([]document, bool) {
	if !(document{text: content}).beginsLikeJSON() {
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

// beginsLikeJSON reports whether the document begins like a JSON object; YAML may, too.
func (d document) beginsLikeJSON() bool {
	return bytes.HasPrefix(bytes.TrimSpace(d.text), []byte("{"))
}

// parse returns the document's object and warnings. Numbers are int64 or float64; nulls are
// processed by dropNulls.
func (d document) parse() (object map[string]any, warnings []string, err error) {
	parse := d.parseYAML
	if d.beginsLikeJSON() && utf8.Valid(d.text) && json.Valid(d.text) {
		parse = d.parseJSON
	}
	value, warnings, err := parse()
	if err != nil {
		return nil, nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("line %d: the document is %s, not an object with apiVersion, kind and metadata",
			d.line, jsonKind(value))
	}
	if items, ok := object["items"]; ok && items == nil {
		object["items"] = []any{} // Go programs encode an empty list as null
	}
	dropNulls(object)
	return object, warnings, nil
}

// parseJSON returns the value of valid JSON. Not all JSON is YAML: "\/" and surrogate pairs are
// errors in YAML.
func (d document) parseJSON() (value any, warnings []string, err error) {
	doubled, err := kjson.UnmarshalStrict(d.text, &value, kjson.DisallowDuplicateFields)
	if err != nil {
		return nil, nil, fmt.Errorf("invalid JSON: %w", err)
	}
	if len(doubled) > 0 {
		var messages []string
		for _, e := range doubled[:min(len(doubled), maxMessages+1)] {
			messages = append(messages, e.Error())
		}
		warnings = []string{"invalid JSON: " + joinMessages(messages) + " (the last one counts)"}
	}
	return value, warnings, nil
}

// parseYAML returns the value of YAML.
func (d document) parseYAML() (value any, warnings []string, err error) {
	size := bytes.Count(d.text, []byte(","))
	for range yamlLines(d.text) {
		size++
	}
	if size > maxYAMLValues {
		remedy := `divide it into documents by lines of "---", or write it as JSON`
		if d.beginsLikeJSON() {
			remedy = fmt.Sprintf("it is no JSON: %v", json.Unmarshal(d.text, new(json.RawMessage)))
		}
		return nil, nil, fmt.Errorf("is too large for YAML: it has %d lines and commas, at most %d are read; %s", size, maxYAMLValues, remedy)
	}
	raw, err := yaml.YAMLToJSONStrict(d.text)
	if doubled, ok := errors.AsType[*yaml2.TypeError](err); ok {
		if raw, err = yaml.YAMLToJSON(d.text); err == nil {
			if messages := doubledKeys(d.text, doubled.Errors); len(messages) > 0 {
				warnings = []string{d.explainYAML(messages) + " (the last one counts)"}
			}
		}
	}
	if err != nil {
		return nil, nil, errors.New(d.explainSyntax(err.Error()))
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &value); err != nil {
		return nil, nil, fmt.Errorf("cannot be parsed: %w", err)
	}
	return value, warnings, nil
}

// joinMessages returns at most maxMessages messages as one line.
func joinMessages(messages []string) string {
	if len(messages) > maxMessages {
		messages = append(slices.Clone(messages[:maxMessages]), "and more")
	}
	return strings.Join(messages, "; ")
}

// doubledKeys returns the strict parser's messages about duplicate keys. The parser also reports
// keys that override a merged object's ("<<"), which are valid.
func doubledKeys(text []byte, messages []string) []string {
	if !bytes.Contains(text, []byte("<<")) {
		return messages
	}
	var root yaml3.Node
	if err := yaml3.Unmarshal(text, &root); err != nil {
		return messages // this parser implements another version of YAML
	}
	return appendDoubled(nil, &root)
}

// appendDoubled appends a message for each key in the tree that replaces another one, up to
// maxMessages+1.
func appendDoubled(messages []string, n *yaml3.Node) []string {
	if n.Kind == yaml3.MappingNode {
		explicit, all := map[string]bool{}, map[string]bool{} // all: including merged keys
		for i := 0; i+1 < len(n.Content); i += 2 {
			keys, replaceable := n.Content[i:i+1], all
			if isMergeKey(n.Content[i]) {
				keys = appendMergedKeys(nil, n.Content[i+1], map[*yaml3.Node]bool{})
			} else {
				replaceable = explicit
			}
			for _, key := range keys {
				if replaceable[key.Value] && len(messages) <= maxMessages {
					messages = append(messages, fmt.Sprintf("line %d: key %q already set in map", key.Line, key.Value))
				}
			}
			for _, key := range keys { // after the check: the objects of one "<<" may share keys
				all[key.Value] = true
				replaceable[key.Value] = true
			}
		}
	}
	for _, c := range n.Content {
		messages = appendDoubled(messages, c)
	}
	return messages
}

func isMergeKey(key *yaml3.Node) bool { return key.ShortTag() == "!!merge" }

// appendMergedKeys appends the keys of the object, or list of objects, that is the value of "<<".
// It visits each object once.
func appendMergedKeys(keys []*yaml3.Node, n *yaml3.Node, visited map[*yaml3.Node]bool) []*yaml3.Node {
	if n.Kind == yaml3.AliasNode {
		n = n.Alias
	}
	if visited[n] {
		return keys
	}
	visited[n] = true
	for i, c := range n.Content {
		switch {
		case n.Kind == yaml3.SequenceNode:
			keys = appendMergedKeys(keys, c, visited)
		case i%2 == 1: // a value
		case isMergeKey(c):
			keys = appendMergedKeys(keys, n.Content[i+1], visited)
		default:
			keys = append(keys, c)
		}
	}
	return keys
}

var (
	// textMaps are the members of manifests whose values are maps of strings, quantityMaps those
	// whose values are maps of quantities.
	textMaps = []string{
		"labels", "annotations", "nodeSelector", "matchLabels", "options", "volumeAttributes", "userAnnotations",
		"data", "stringData", "binaryData",
	}
	quantityMaps = []string{"limits", "requests", "overhead"}
)

// dropNulls removes null members at every depth: the API treats them as absent. A null in a map
// becomes the empty string or the quantity 0.
func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, m := range v {
			if m == nil {
				delete(v, k)
				continue
			}
			switch {
			case slices.Contains(textMaps, k):
				fillNulls(m, "")
			case slices.Contains(quantityMaps, k):
				fillNulls(m, "0")
			}
			dropNulls(m)
		}
	case []any:
		for _, m := range v {
			dropNulls(m)
		}
	}
}

// fillNulls replaces null members, if v is a map.
func fillNulls(v any, with string) {
	values, _ := v.(map[string]any)
	for k, value := range values {
		if value == nil {
			values[k] = with
		}
	}
}

// jsonKind names the type of a JSON value for users.
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
