package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/resources/containermanager"
)

// describeFlags are the flags of `berth describe`.
type describeFlags struct {
	namespace     string
	allNamespaces bool
	selector      string
	showEvents    bool
}

func newDescribeCommand(g *globalFlags) *cobra.Command {
	var f describeFlags
	cmd := &cobra.Command{
		Use:   "describe pod|node [NAME|PREFIX...]",
		Short: "Show all that is known of pods, or of the node, in kubectl's form",
		Long: `Show all that is known of pods, as "kubectl describe" does: what they are made of, how they are, and what happened to them. Of the
node: what it is, how it is, its pods, how much of it they have asked for, and which devices, CPUs and memory each container has to itself.

A name that no pod has stands for all pods whose names begin with it. Why the agent did what it did, "berth explain" tells.`,
		Example: `  berth describe pod hello-web
  berth describe pods -l app=hello
  berth describe pod/hello-web default/pair
  berth describe node`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"pods", "node"}, cobra.ShellCompDirectiveNoFileComp
			}
			return completePods(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if names, ok := nodeNames(args); ok {
				return describeNode(cmd.Context(), newClient(g.runDir), names, f, streamsOf(cmd))
			}
			filter, err := newPodFilter(args, getFlags{namespace: f.namespace, selector: f.selector})
			if err != nil {
				return err
			}
			var events *bool
			if cmd.Flags().Changed("show-events") {
				events = &f.showEvents
			}
			return describePods(cmd.Context(), newClient(g.runDir), filter, events, streamsOf(cmd))
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "only pods of this namespace")
	fl.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "pods of all namespaces (the default)")
	fl.StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, for example app=hello,tier!=db")
	fl.BoolVar(&f.showEvents, "show-events", true, "show their events (default: of one pod that is named)")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// describePods prints the pods that are meant. events says whether with their events; nil: if it is
// one by its name.
func describePods(ctx context.Context, c *client, filter podFilter, events *bool, s streams) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	chosen, byName, missing := chooseDescribed(pods, filter)
	if missing != nil {
		missing = explainMissing(ctx, c, missing, filter.refs...)
	}
	if len(chosen) == 0 {
		if missing == nil {
			_, err = fmt.Fprintln(s.errOut, "No pods found.")
		}
		return errors.Join(missing, err)
	}
	var list server.EventList
	if withEvents := byName && len(chosen) == 1; withEvents && events == nil || events != nil && *events {
		if err := c.getJSON(ctx, server.PathEvents, nil, &list); err != nil {
			return err
		}
		if list.Items == nil {
			list.Items = []*v1.Event{}
		}
	}
	assigned, err := c.resources(ctx)
	if err != nil {
		return err
	}
	for i, p := range chosen {
		if i > 0 {
			if _, err := io.WriteString(s.out, "\n\n"); err != nil {
				return err
			}
		}
		d := &describer{assigned: assigned}
		d.pod(p, time.Now())
		if list.Items != nil {
			d.events(eventsAbout(list.Items, v1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}), time.Now())
		}
		if err := d.print(s.out); err != nil {
			return err
		}
	}
	return missing
}

// chooseDescribed returns the pods that the filter means, whether all by their whole names, and an
// error for each name that begins none.
func chooseDescribed(pods []*v1.Pod, filter podFilter) (chosen []*v1.Pod, byName bool, missing error) {
	add := func(wants func(*v1.Pod) bool) (found bool) {
		for _, p := range pods {
			if wants(p) {
				found = true
				if !slices.Contains(chosen, p) {
					chosen = append(chosen, p)
				}
			}
		}
		return found
	}
	if len(filter.refs) == 0 {
		add(filter.wants)
		return chosen, false, nil
	}
	byName = true
	for _, r := range filter.refs {
		if add(func(p *v1.Pod) bool { return r.matches(p.Namespace, p.Name) }) {
			continue
		}
		byName = false
		begins := func(p *v1.Pod) bool {
			return strings.HasPrefix(p.Name, r.Name) && r.matches(p.Namespace, r.Name)
		}
		if !add(begins) {
			missing = errors.Join(missing, notFound(r, refsOf(pods)))
		}
	}
	return chosen, byName, missing
}

// eventsAbout returns the events about the object, those that were seen last at the end.
func eventsAbout(all []*v1.Event, about v1.ObjectReference) []*v1.Event {
	var found []*v1.Event
	for _, e := range all {
		o := &e.InvolvedObject
		if o.Kind == about.Kind && o.Namespace == about.Namespace && o.Name == about.Name && (about.UID == "" || cmp.Or(o.UID, about.UID) == about.UID) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b *v1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return found
}

// describer writes kubectl's form: lines whose parts are separated by tabs, which stand below each
// other.
type describer struct {
	text strings.Builder
	// assigned is what containers have of the node to themselves.
	assigned containermanager.Snapshot
}

// line writes a line that is indented by so many steps.
func (d *describer) line(indent int, format string, a ...any) {
	for i := range a {
		if s, ok := a[i].(string); ok {
			a[i] = oneLineOf(s)
		}
	}
	fmt.Fprintf(&d.text, strings.Repeat("  ", indent)+format+"\n", a...)
}

// oneLineOf keeps the text on its line, between its tabs, and its reader's terminal as it is.
func oneLineOf(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r):
			return '\uFFFD'
		}
		return r
	}, s)
}

// paragraph writes a text, whose lines stand below each other.
func (d *describer) paragraph(indent int, title, text string) {
	for l := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		d.line(indent, "%s\t%s", title, l)
		title = ""
	}
}

func (d *describer) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if _, err := io.WriteString(t, d.text.String()); err != nil {
		return err
	}
	return t.Flush()
}

// several writes a title and what belongs to it, below each other.
func (d *describer) several(title string, lines []string) {
	if len(lines) == 0 {
		lines = []string{"<none>"}
	}
	for i, l := range lines {
		if i > 0 {
			title = ""
		}
		d.line(0, title+"\t%s", l)
	}
}

func sortedLabels(m map[string]string) []string {
	var lines []string
	for k, v := range m {
		lines = append(lines, labels.Set{k: v}.String())
	}
	slices.Sort(lines)
	return lines
}

// maxAnnotation is the length up to which an annotation with its name stands on one line; a line of
// a longer one is cut after maxAnnotationLine.
const (
	maxAnnotation     = 140
	maxAnnotationLine = 138
)

func annotationLines(m map[string]string) []string {
	var lines []string
	hidden := []string{v1.LastAppliedConfigAnnotation}
	if m[pod.ConfigSourceAnnotation] == string(pod.APISource) {
		hidden = append(hidden, pod.ConfigSourceAnnotation, pod.ConfigSeenAnnotation) // ours, which the API does not have
	}
	keys := slices.DeleteFunc(sortedKeys(m), func(k string) bool { return slices.Contains(hidden, k) })
	for _, k := range keys {
		v := strings.TrimSuffix(m[k], "\n")
		if len(k)+len(v)+2 <= maxAnnotation && !strings.Contains(v, "\n") {
			lines = append(lines, k+": "+v)
			continue
		}
		lines = append(lines, k+":")
		for l := range strings.SplitSeq(v, "\n") {
			if len(l) > maxAnnotationLine {
				l = l[:maxAnnotationLine] + "..."
			}
			lines = append(lines, "  "+l)
		}
	}
	return lines
}

func (d *describer) events(list []*v1.Event, now time.Time) {
	if len(list) == 0 {
		d.line(0, "Events:\t<none>")
		return
	}
	d.line(0, "Events:")
	d.line(1, "Type\tReason\tAge\tFrom\tMessage")
	d.line(1, "----\t------\t----\t----\t-------")
	for _, e := range list {
		d.line(1, "%s\t%s\t%s\t%s\t%s", e.Type, e.Reason, lastSeen(e, now), cmp.Or(e.Source.Component, e.ReportingController), oneLine(e.Message))
	}
}
