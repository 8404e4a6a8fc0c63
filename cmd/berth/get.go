package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"berth/internal/source/manifest"
)

// getFlags are the flags of `berth get pods`.
type getFlags struct {
	namespace     string
	allNamespaces bool
	selector      string
	fieldSelector string
	output        string
	sortBy        string
	watch         bool
	noHeaders     bool
	showLabels    bool
	labelColumns  []string
}

func newGetCommand(g *globalFlags) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get pods|nodes [NAME...]",
		Short: "Show the pods of this node, or the node",
		Long: `Show the pods of this node, or the node itself, in kubectl's columns.

Pods of all namespaces are shown unless --namespace says otherwise; the NAMESPACE column appears when there is more than one.
A manifest that was refused has a row with the name of its file and the status InvalidManifest; below the table stands why. Below the node stands what is wrong with the agent.`,
		Example: `  berth get pods
  berth get pods -o wide
  berth get pod/hello-web -o yaml
  berth get pods -w -l app=hello
  berth get pods -o custom-columns=POD:.metadata.name,IP:.status.podIP --sort-by .status.startTime
  berth get pod hello-web -o jsonpath='{.status.podIP}'
  berth get nodes -o wide`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"pods", "nodes"}, cobra.ShellCompDirectiveNoFileComp
			}
			return completePods(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if names, ok := nodeNames(args); ok {
				return getNode(cmd.Context(), newClient(g.runDir), names, f, streamsOf(cmd))
			}
			filter, err := newPodFilter(args, f)
			if err != nil {
				return err
			}
			printer, err := newPodPrinter(f, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			c := newClient(g.runDir)
			if f.sortBy != "" && !f.watch {
				if filter.sort, err = newPodOrder(f.sortBy); err != nil {
					return err
				}
			}
			if f.watch {
				return watchPods(cmd.Context(), c, filter, printer)
			}
			return getPods(cmd.Context(), c, filter, printer)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "only pods of this namespace")
	fl.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "pods of all namespaces (the default), always with their namespace")
	fl.StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, for example app=hello,tier!=db")
	fl.StringVar(&f.fieldSelector, "field-selector", "", "only pods with these fields, for example status.phase!=Running,spec.nodeName=box")
	fl.StringVarP(&f.output, "output", "o", "", "wide, yaml, json, name, jsonpath=TEMPLATE, go-template=TEMPLATE or custom-columns=TITLE:PATH,...")
	fl.StringVar(&f.sortBy, "sort-by", "", "order by the field at this path, for example .metadata.creationTimestamp")
	fl.BoolVar(&f.showLabels, "show-labels", false, "show labels in the last column")
	fl.StringSliceVarP(&f.labelColumns, "label-columns", "L", nil, "a column for the value of each of these labels, for example app,tier")
	fl.BoolVarP(&f.watch, "watch", "w", false, "then show every change until interrupted")
	fl.BoolVar(&f.noHeaders, "no-headers", false, "leave the header out")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	completeFixed(cmd, "output", "wide", "yaml", "json", "name", "jsonpath=", "go-template=", "custom-columns=")
	return cmd
}

// podFilter chooses pods and problems.
type podFilter struct {
	namespace string
	refs      []podRef // none: all
	selector  labels.Selector
	fields    fields.Selector
	sort      podOrder // nil: by namespace and name
}

// newPodFilter reads `pods [NAME…]` and `pod/NAME…`.
func newPodFilter(args []string, f getFlags) (podFilter, error) {
	filter := podFilter{namespace: f.namespace}
	if isPodType(args[0]) {
		args = args[1:]
	} else if kind, _, ok := strings.Cut(args[0], "/"); !ok || !isPodType(kind) {
		return filter, fmt.Errorf(`%q is not a type that this node has: try "pods" or "nodes"`, args[0])
	}
	for _, a := range args {
		ref, err := parsePodRef(a, f.namespace)
		if err != nil {
			return filter, err
		}
		filter.refs = append(filter.refs, ref)
	}
	if len(filter.refs) > 0 && f.selector+f.fieldSelector != "" {
		return filter, errNamesAndSelectors
	}
	var err error
	if filter.fields, err = parseFieldSelector(f.fieldSelector); err != nil {
		return filter, fmt.Errorf("--field-selector: %w", err)
	}
	if filter.selector, err = labels.Parse(f.selector); err != nil {
		return filter, fmt.Errorf("--selector: %w", err)
	}
	return filter, nil
}

var errNamesAndSelectors = errors.New("names and selectors cannot be used together")

func (f podFilter) wants(p *v1.Pod) bool {
	if f.namespace != "" && p.Namespace != f.namespace || !f.selector.Matches(labels.Set(p.Labels)) || !f.fields.Matches(selectableFields(p)) {
		return false
	}
	return len(f.refs) == 0 || slices.ContainsFunc(f.refs, func(r podRef) bool { return r.matches(p.Namespace, p.Name) })
}

func (f podFilter) wantsProblem(p manifest.Problem) bool {
	if f.namespace != "" && p.Namespace != "" && p.Namespace != f.namespace || !f.selector.Empty() || !f.fields.Empty() {
		return false
	}
	return len(f.refs) == 0 || slices.ContainsFunc(f.refs, func(r podRef) bool {
		return r.Name == filepath.Base(p.Path) || r.matches(p.Namespace, p.Name)
	})
}

// apply returns what was chosen, and an error for each name that nothing has.
func (f podFilter) apply(pods []*v1.Pod, problems []manifest.Problem) ([]*v1.Pod, []manifest.Problem, error) {
	var missing []error
	for _, r := range f.refs {
		one := podFilter{namespace: f.namespace, refs: []podRef{r}, selector: f.selector, fields: f.fields}
		if !slices.ContainsFunc(pods, one.wants) && !slices.ContainsFunc(problems, one.wantsProblem) {
			missing = append(missing, notFound(r, refsOf(pods)))
		}
	}
	unwanted := func(p *v1.Pod) bool { return !f.wants(p) }
	unwantedProblem := func(p manifest.Problem) bool { return !f.wantsProblem(p) }
	return slices.DeleteFunc(slices.Clone(pods), unwanted), slices.DeleteFunc(slices.Clone(problems), unwantedProblem), errors.Join(missing...)
}

func refsOf(pods []*v1.Pod) []podRef {
	refs := make([]podRef, len(pods))
	for i, p := range pods {
		refs[i] = podRef{p.Namespace, p.Name}
	}
	return refs
}

func getPods(ctx context.Context, c *client, filter podFilter, out podPrinter) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	problems, err := c.problems(ctx)
	if err != nil {
		return err
	}
	chosen, chosenProblems, missing := filter.apply(pods, problems)
	if missing != nil && len(chosen)+len(chosenProblems) == 0 {
		return missing
	}
	if filter.sort != nil {
		if err := filter.sort(chosen); err != nil {
			return err
		}
	}
	one := len(filter.refs) == 1
	if t, ok := out.(*tablePrinter); ok {
		// A table without it is better than none.
		t.columns.pulls, _ = c.pulls(ctx, chosen)
	}
	return errors.Join(out.list(podList{chosen, chosenProblems, one}, time.Now()), missing)
}

// podList is what there is to print.
type podList struct {
	pods     []*v1.Pod
	problems []manifest.Problem
	one      bool // a single pod was asked for by name
}

// podPrinter prints pods in one format.
type podPrinter interface {
	list(l podList, now time.Time) error
	// change prints a pod that changed after it was listed.
	change(p *v1.Pod, now time.Time) error
	// problems prints what is wrong with manifests now, as far as it was not printed before.
	problems(problems []manifest.Problem) error
}

func newPodPrinter(f getFlags, out, errOut io.Writer) (podPrinter, error) {
	table := &tablePrinter{
		out: out, errOut: errOut, printed: map[string]bool{},
		columns: podColumns{namespace: f.allNamespaces, wide: f.output == "wide", noHeader: f.noHeaders, labels: f.showLabels, labelColumns: f.labelColumns},
	}
	switch kind, _, _ := strings.Cut(f.output, "="); kind {
	case "jsonpath", "go-template", "custom-columns":
		return newTemplatePrinter(f, out)
	}
	switch f.output {
	case "", "wide":
		return table, nil
	case "json", "yaml", "name":
		return objectPrinter{format: f.output, watch: f.watch, out: out}, nil
	}
	return nil, errFormat(f.output)
}

func errFormat(output string) error {
	return fmt.Errorf("--output: %q is not a format: choose wide, yaml, json, name, jsonpath=, go-template= or custom-columns=", output)
}
