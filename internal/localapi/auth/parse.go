package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
)

// parseRules parses the rules file. An error names path, line, field and fix.
//
//	rules:
//	- users: [ci]
//	  verbs: [get, list, watch]
//	  resources: [pods, pods/log]
//	  namespaces: [x]
func parseRules(path string, content []byte) (Rules, error) {
	doc, err := parseYAML(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if doc == nil {
		return nil, nil
	}
	p := rulesParser{path: path}
	list, err := p.list(doc.Content[0])
	if err != nil {
		return nil, err
	}
	var rules Rules
	for i, n := range list {
		r, err := p.rule(n, fmt.Sprintf("rules[%d]", i))
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// parseYAML returns the only document, which has a root; nil if there is none.
func parseYAML(content []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	var doc, second yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch err := d.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document: put all rules in one", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	if doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	return &doc, nil
}

type rulesParser struct{ path string }

func (p rulesParser) wrong(n *yaml.Node, field, format string, args ...any) error {
	if field != "" {
		field += ": "
	}
	return fmt.Errorf("%s: line %d: %s%w", p.path, n.Line, field, fmt.Errorf(format, args...))
}

// list returns the nodes of the rules.
func (p rulesParser) list(root *yaml.Node) ([]*yaml.Node, error) {
	fields, err := p.fields(root, "", []string{"rules"})
	if err != nil || fields["rules"] == nil {
		return nil, err
	}
	n := fields["rules"]
	switch {
	case n.Tag == "!!null":
		return nil, nil
	case n.Kind != yaml.SequenceNode:
		return nil, p.wrong(n, "rules", "it is a list of rules, each after a dash")
	}
	return n.Content, nil
}

// fields returns the values of a mapping by key.
func (p rulesParser) fields(n *yaml.Node, field string, known []string) (map[string]*yaml.Node, error) {
	if n.Kind != yaml.MappingNode {
		return nil, p.wrong(n, field, "there must be fields with values: %q", known)
	}
	found := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := key.Value
		if field != "" {
			at = field + "." + at
		}
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			return nil, p.wrong(key, at, "there is no such field: use %q", known)
		case found[key.Value] != nil:
			return nil, p.wrong(key, at, "the field is there twice: make one of both")
		}
		found[key.Value] = value
	}
	return found, nil
}

var ruleFields = []string{"users", "groups", "verbs", "namespaces", "resources", "resourceNames", "nonResourceURLs"}

// values returns the list of a rule's field.
func (r *Rule) values(field string) *[]string {
	return map[string]*[]string{
		"users": &r.Users, "groups": &r.Groups, "verbs": &r.Verbs, "namespaces": &r.Namespaces,
		"resources": &r.Resources, "resourceNames": &r.ResourceNames, "nonResourceURLs": &r.NonResourceURLs,
	}[field]
}

func (p rulesParser) rule(n *yaml.Node, at string) (Rule, error) {
	var r Rule
	fields, err := p.fields(n, at, ruleFields)
	if err != nil {
		return r, err
	}
	for _, name := range ruleFields {
		if v := fields[name]; v != nil {
			if *r.values(name), err = p.strings(v, at+"."+name); err != nil {
				return r, err
			}
		}
	}
	if wrong := r.prepare(); wrong != nil {
		switch v := fields[wrong.field]; {
		case v == nil:
			return r, p.wrong(n, at, "%w", wrong.err)
		case wrong.index < 0:
			return r, p.wrong(v, at+"."+wrong.field, "%w", wrong.err)
		default:
			return r, p.wrong(v.Content[wrong.index], fmt.Sprintf("%s.%s[%d]", at, wrong.field, wrong.index), "%w", wrong.err)
		}
	}
	r.why = fmt.Sprintf("allowed by line %d of %s", n.Line, p.path)
	return r, nil
}

// strings returns the elements of a list, which must not be empty: an empty list would look like a
// restriction but be none.
func (p rulesParser) strings(n *yaml.Node, at string) ([]string, error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil, p.wrong(n, at, "it is a list with at least one element: write [a, b], or leave the field away")
	}
	var values []string
	for i, e := range n.Content {
		if e.Kind != yaml.ScalarNode || e.Tag != "!!str" {
			return nil, p.wrong(e, fmt.Sprintf("%s[%d]", at, i), "it must be text: put it in quotes")
		}
		values = append(values, e.Value)
	}
	return values, nil
}

// firstLine is the comment of a new rules file.
const firstLine = "Who may do what at the local API of Berth. A change holds at once."

// withRule returns the content of a rules file with a rule added. It preserves comments.
func withRule(content []byte, r Rule) ([]byte, error) {
	doc, err := parseYAML(content)
	if err != nil {
		return nil, err
	}
	if doc == nil {
		doc = &yaml.Node{Kind: yaml.DocumentNode, HeadComment: firstLine, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	root := doc.Content[0]
	rules := valueOf(root, "rules")
	if rules == nil {
		rules = &yaml.Node{}
		root.Content = append(root.Content, text("rules"), rules)
	}
	rules.Kind, rules.Tag, rules.Value, rules.Style = yaml.SequenceNode, "", "", 0
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, field := range ruleFields {
		if values := *r.values(field); len(values) > 0 {
			list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, v := range values {
				list.Content = append(list.Content, text(v))
			}
			n.Content = append(n.Content, text(field), list)
		}
	}
	rules.Content = append(rules.Content, n)
	return encodeYAML(doc)
}

// withoutUser returns the content of a valid rules file without a user, and how many rules named
// it.
func withoutUser(content []byte, user string) (_ []byte, named int, err error) {
	doc, err := parseYAML(content)
	if err != nil || doc == nil {
		return content, 0, err
	}
	rules := valueOf(doc.Content[0], "rules")
	if rules == nil {
		return content, 0, nil
	}
	rules.Content = slices.DeleteFunc(rules.Content, func(rule *yaml.Node) bool {
		users := valueOf(rule, "users")
		if users == nil {
			return false
		}
		all := len(users.Content)
		users.Content = slices.DeleteFunc(users.Content, func(n *yaml.Node) bool { return n.Value == user })
		if len(users.Content) == all {
			return false
		}
		named++
		if len(users.Content) > 0 {
			return false
		}
		at := slices.Index(rule.Content, users)
		rule.Content = slices.Delete(rule.Content, at-1, at+1)
		return valueOf(rule, "groups") == nil
	})
	if named == 0 {
		return content, 0, nil
	}
	if len(rules.Content) == 0 {
		rules.Style = yaml.FlowStyle // "[]"
	}
	content, err = encodeYAML(doc)
	return content, named, err
}

// valueOf returns the value of a mapping's key, nil if it does not exist.
func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func encodeYAML(doc *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(doc), e.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// text returns a string node: values such as "on" and "1" are quoted.
func text(s string) *yaml.Node {
	var n yaml.Node
	n.SetString(s)
	return &n
}
