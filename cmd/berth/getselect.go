package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"berth/internal/pod/lifecycle"
	"berth/internal/source/manifest"
)

// selectableFields are the fields of pods that an API server selects by (the documentation of field
// selectors).
func selectableFields(p *v1.Pod) fields.Set {
	return fields.Set{
		"metadata.name":            p.Name,
		"metadata.namespace":       p.Namespace,
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             lifecycle.FirstIP(p),
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

func parseFieldSelector(s string) (fields.Selector, error) {
	selector, err := fields.ParseSelector(s)
	if err != nil {
		return nil, err
	}
	known := selectableFields(&v1.Pod{})
	for _, r := range selector.Requirements() {
		if !known.Has(r.Field) {
			return nil, fmt.Errorf("field label not supported: %s; there are %s", r.Field, strings.Join(sortedKeys(known), ", "))
		}
	}
	return selector, nil
}

// parsePath reads a path as custom columns and --sort-by have it: the braces and the first dot may
// be left out.
func parsePath(s string) (*jsonpath.JSONPath, error) {
	bare := strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}"), ".")
	j := jsonpath.New("path").AllowMissingKeys(true)
	if err := j.Parse("{." + bare + "}"); err != nil {
		return nil, fmt.Errorf("path %q: %w", s, err)
	}
	return j, nil
}

// plain returns the value as JSON has it, which is what paths and templates go by.
func plain(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	return out, utiljson.Unmarshal(text, &out) // whole numbers stay what they are
}

// valuesAt returns what is at the path, as text; nothing where the path leads nowhere.
func valuesAt(path *jsonpath.JSONPath, object any) ([]string, error) {
	results, err := path.FindResults(object)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range slices.Concat(results...) {
		if v := r.Interface(); v != nil {
			out = append(out, fmt.Sprint(v))
		}
	}
	return out, nil
}

// podOrder sorts pods.
type podOrder func([]*v1.Pod) error

// newPodOrder sorts by the field at the path: numbers by their size, all else as text, which is
// right for times, too. Pods that lack the field come first.
func newPodOrder(arg string) (podOrder, error) {
	path, err := parsePath(arg)
	if err != nil {
		return nil, fmt.Errorf("--sort-by: %w", err)
	}
	return func(pods []*v1.Pod) error {
		keys := map[*v1.Pod]string{}
		for _, p := range pods {
			object, err := plain(typed(p))
			if err != nil {
				return err
			}
			values, err := valuesAt(path, object)
			if err != nil {
				return fmt.Errorf("--sort-by: %w", err)
			}
			keys[p] = strings.Join(values, ",")
		}
		slices.SortStableFunc(pods, func(a, b *v1.Pod) int {
			x, errX := strconv.ParseFloat(keys[a], 64)
			y, errY := strconv.ParseFloat(keys[b], 64)
			if errX == nil && errY == nil {
				return cmp.Compare(x, y)
			}
			return strings.Compare(keys[a], keys[b])
		})
		return nil
	}, nil
}

// newTemplatePrinter returns a printer for jsonpath, go-template or custom-columns.
func newTemplatePrinter(f getFlags, out io.Writer) (podPrinter, error) {
	kind, text, _ := strings.Cut(f.output, "=")
	if text == "" {
		return nil, fmt.Errorf("--output: %s= needs a template behind it", kind)
	}
	switch kind {
	case "jsonpath":
		j := jsonpath.New("output").AllowMissingKeys(true)
		if err := j.Parse(text); err != nil {
			return nil, fmt.Errorf("--output: jsonpath %q: %w", text, err)
		}
		return templatePrinter{execute: j.Execute, out: out}, nil
	case "go-template":
		t, err := template.New("output").Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--output: go-template: %w", err)
		}
		return templatePrinter{execute: t.Execute, out: out}, nil
	}
	p := &columnPrinter{out: out, noHeaders: f.noHeaders}
	for column := range strings.SplitSeq(text, ",") {
		title, path, ok := strings.Cut(column, ":")
		if !ok || title == "" || path == "" {
			return nil, fmt.Errorf("--output: custom-columns: %q: expected TITLE:PATH", column)
		}
		j, err := parsePath(path)
		if err != nil {
			return nil, fmt.Errorf("--output: custom-columns: %w", err)
		}
		p.titles, p.paths = append(p.titles, title), append(p.paths, j)
	}
	return p, nil
}

// templatePrinter prints what a template makes of a pod, or of a v1.List of pods.
type templatePrinter struct {
	execute func(io.Writer, any) error
	out     io.Writer
}

func (t templatePrinter) list(l podList, now time.Time) error {
	switch {
	case l.one && len(l.pods) == 0 && len(l.problems) > 0:
		return errors.New(problemLine(l.problems[0]))
	case l.one && len(l.pods) == 1:
		return t.change(l.pods[0], now)
	}
	return t.print(listOf(l.pods))
}

func (t templatePrinter) change(p *v1.Pod, _ time.Time) error { return t.print(typed(p)) }

func (t templatePrinter) problems([]manifest.Problem) error { return nil }

func (t templatePrinter) print(v any) error {
	object, err := plain(v)
	if err == nil {
		err = t.execute(t.out, object)
	}
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// columnPrinter prints a table of the user's own columns.
type columnPrinter struct {
	out       io.Writer
	noHeaders bool
	titles    []string
	paths     []*jsonpath.JSONPath
	table     table
}

func (c *columnPrinter) list(l podList, _ time.Time) error {
	objects := make([]any, len(l.pods))
	for i, p := range l.pods {
		objects[i] = typed(p)
	}
	return c.objects(objects)
}

// objects prints the table of API objects.
func (c *columnPrinter) objects(objects []any) error {
	var rows [][]string
	if !c.noHeaders {
		rows = append(rows, c.titles)
	}
	for _, o := range objects {
		row, err := c.row(o)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return c.print(rows)
}

func (c *columnPrinter) change(p *v1.Pod, _ time.Time) error {
	row, err := c.row(typed(p))
	if err != nil {
		return err
	}
	return c.print([][]string{row})
}

func (c *columnPrinter) problems([]manifest.Problem) error { return nil }

func (c *columnPrinter) row(o any) ([]string, error) {
	object, err := plain(o)
	if err != nil {
		return nil, err
	}
	row := make([]string, len(c.paths))
	for i, path := range c.paths {
		values, err := valuesAt(path, object)
		if err != nil {
			return nil, fmt.Errorf("--output: custom-columns: %s: %w", c.titles[i], err)
		}
		row[i] = orNone(oneLine(strings.Join(values, ",")))
	}
	return row, nil
}

func (c *columnPrinter) print(rows [][]string) error {
	for _, line := range c.table.lines(rows) {
		if _, err := fmt.Fprintln(c.out, line); err != nil {
			return err
		}
	}
	return nil
}
