package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/source/manifest"
)

// tablePrinter prints pods as kubectl's table.
type tablePrinter struct {
	out, errOut io.Writer
	columns     podColumns
	table       table
	namespace   string          // of the first pod printed
	printed     map[string]bool // lines about problems
}

func (t *tablePrinter) list(l podList, now time.Time) error {
	pods, problems := l.pods, l.problems
	if len(pods) > 0 {
		t.namespace = pods[0].Namespace
		t.columns.namespace = t.columns.namespace || severalNamespaces(pods)
	}
	rows := t.columns.rows(pods, problems, now)
	if len(pods) == 0 && len(refusedRows(problems, now)) == 0 {
		if _, err := fmt.Fprintln(t.errOut, "No pods found."); err != nil {
			return err
		}
		t.table.measure(t.columns.header())
		return t.problems(problems)
	}
	if _, err := fmt.Fprintln(t.out, strings.Join(t.table.lines(rows), "\n")); err != nil {
		return err
	}
	return t.problems(problems)
}

func (t *tablePrinter) change(p *v1.Pod, now time.Time) error {
	rows := [][]string{t.columns.cells(computePodRow(p, now), p.Labels)}
	switch {
	case t.namespace == "":
		t.namespace = p.Namespace
		rows = t.columns.rows([]*v1.Pod{p}, nil, now) // the first pod: nothing was printed yet
	case !t.columns.namespace && t.namespace != p.Namespace:
		t.columns.namespace, t.table = true, table{} // from here on they must be told apart
		rows = t.columns.rows([]*v1.Pod{p}, nil, now)
	}
	_, err := fmt.Fprintln(t.out, strings.Join(t.table.lines(rows), "\n"))
	return err
}

func (t *tablePrinter) problems(problems []manifest.Problem) error {
	for _, p := range problems {
		line := problemLine(p)
		if t.printed[line] {
			continue
		}
		t.printed[line] = true
		if _, err := fmt.Fprintln(t.errOut, line); err != nil {
			return err
		}
	}
	return nil
}

// objectPrinter prints pods as API objects or their names. Manifests that were refused are no
// objects.
type objectPrinter struct {
	format string // json, yaml or name
	watch  bool
	out    io.Writer
}

// objectList is a v1.List.
type objectList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []any  `json:"items"`
}

func (o objectPrinter) list(l podList, now time.Time) error {
	if l.one && len(l.pods) == 0 && len(l.problems) > 0 {
		return errors.New(problemLine(l.problems[0]))
	}
	if o.format == "name" || o.watch || l.one && len(l.pods) == 1 {
		for _, p := range l.pods {
			if err := o.change(p, now); err != nil {
				return err
			}
		}
		return nil
	}
	return o.print(listOf(l.pods))
}

func listOf(pods []*v1.Pod) objectList {
	list := objectList{APIVersion: "v1", Kind: "List", Items: make([]any, 0, len(pods))}
	for _, p := range pods {
		list.Items = append(list.Items, typed(p))
	}
	return list
}

func (o objectPrinter) change(p *v1.Pod, _ time.Time) error {
	if o.format == "name" {
		_, err := fmt.Fprintln(o.out, "pod/"+p.Name)
		return err
	}
	if o.format == "yaml" && o.watch {
		if _, err := fmt.Fprintln(o.out, "---"); err != nil {
			return err
		}
	}
	return o.print(typed(p))
}

func (o objectPrinter) problems([]manifest.Problem) error { return nil }

func (o objectPrinter) print(v any) error {
	var (
		text []byte
		err  error
	)
	if o.format == "yaml" {
		text, err = yaml.Marshal(v)
	} else if text, err = json.MarshalIndent(v, "", "    "); err == nil {
		text = append(text, '\n')
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", o.format, err)
	}
	_, err = o.out.Write(text)
	return err
}

// typed returns the pod with its kind, which lists leave out.
func typed(p *v1.Pod) *v1.Pod {
	t := *p
	t.Kind, t.APIVersion = "Pod", "v1"
	return &t
}
