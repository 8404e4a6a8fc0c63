package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// getNode prints the node, which is the only one that the agent knows.
func getNode(ctx context.Context, c *client, names []string, f getFlags, s streams) error {
	if f.watch || f.namespace != "" || f.fieldSelector != "" {
		return errors.New("--watch, --namespace and --field-selector are for pods")
	}
	selector, err := labels.Parse(f.selector)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	if len(names) > 0 && f.selector != "" {
		return errNamesAndSelectors
	}
	n, err := c.node(ctx, names)
	if err != nil {
		return err
	}
	if !selector.Matches(labels.Set(n.Labels)) {
		_, err := fmt.Fprintln(s.errOut, "No nodes found.")
		return err
	}
	now := time.Now()
	var object any = n
	if len(names) != 1 {
		object = objectList{APIVersion: "v1", Kind: "List", Items: []any{n}}
	}
	if err := printNode(n, object, f, now, s.out); err != nil || f.output != "" && f.output != "wide" {
		return err
	}
	states, err := c.health(ctx)
	for _, line := range unhealthyLines(states, now) {
		fmt.Fprintln(s.errOut, line)
	}
	return err
}

// printNode prints the node in the format of the flags; object is the node alone if it was asked
// for by its name, else a list.
func printNode(n *v1.Node, object any, f getFlags, now time.Time, out io.Writer) error {
	if strings.Contains(f.output, "=") {
		p, err := newTemplatePrinter(f, out)
		if err != nil {
			return err
		}
		if columns, ok := p.(*columnPrinter); ok {
			return columns.objects([]any{n})
		}
		return p.(templatePrinter).print(object)
	}
	switch f.output {
	case "json", "yaml":
		return objectPrinter{format: f.output, out: out}.print(object)
	case "name":
		_, err := fmt.Fprintln(out, "node/"+n.Name)
		return err
	case "", "wide":
	default:
		return errFormat(f.output)
	}
	header := []string{"NAME", "STATUS", "ROLES", "AGE", "VERSION"}
	row, wide := nodeRow(n, now)
	if f.output == "wide" {
		header = append(header, "INTERNAL-IP", "EXTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME")
		row = append(row, wide...)
	}
	header = slices.Concat(header, labelTitles(f.labelColumns))
	row = slices.Concat(row, labelCells(f.labelColumns, n.Labels))
	if f.showLabels {
		header, row = append(header, "LABELS"), append(row, orNone(labels.Set(n.Labels).String()))
	}
	rows := [][]string{header, row}
	if f.noHeaders {
		rows = rows[1:]
	}
	return printTop(out, rows)
}

// labelTitles are the titles of columns for labels: the last part of each name.
func labelTitles(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strings.ToUpper(name[strings.LastIndex(name, "/")+1:])
	}
	return out
}

// labelCells are the values in columns for labels; empty where there is no such label.
func labelCells(names []string, of map[string]string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = oneLine(of[name])
	}
	return out
}
