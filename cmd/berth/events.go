package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/api/server"
)

// eventFlags are the flags of `berth events`.
type eventFlags struct {
	namespace     string
	allNamespaces bool
	types         []string
	output        string
	watch         bool
	noHeaders     bool
}

func newEventsCommand(g *globalFlags) *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "events [POD]",
		Short: "Show the events of this node and its pods",
		Long: `Show the newest events that the agent has recorded, in the form of "kubectl events": those that were seen last at the end.

The node keeps them itself, with or without an API server, and also for pods that are gone. An event that comes again is counted; many that differ
in their message alone are combined.`,
		Example: `  berth events
  berth events hello-web --types Warning
  berth events -w
  berth events -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completePod(g, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := newEventFilter(args, f)
			if err != nil {
				return err
			}
			p := &eventPrinter{out: cmd.OutOrStdout(), json: f.output == "json", noHeader: f.noHeaders, namespaces: f.allNamespaces}
			c := newClient(g.runDir)
			if f.watch {
				return watchEvents(cmd.Context(), c, filter, p)
			}
			var list server.EventList
			if err := c.getJSON(cmd.Context(), server.PathEvents, nil, &list); err != nil {
				return err
			}
			list.Items = slices.DeleteFunc(list.Items, func(e *v1.Event) bool { return !filter.wants(e) })
			if p.json {
				return printJSON(p.out, list)
			}
			if len(list.Items) == 0 {
				_, err := fmt.Fprintln(cmd.ErrOrStderr(), "No events found.")
				return err
			}
			return p.table(list.Items, time.Now())
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "only events of this namespace")
	fl.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "events of all namespaces (the default), always with their namespace")
	fl.StringSliceVar(&f.types, "types", nil, "only events of these types: Normal, Warning")
	fl.StringVarP(&f.output, "output", "o", "", "json")
	fl.BoolVarP(&f.watch, "watch", "w", false, "then show every event until interrupted")
	fl.BoolVar(&f.noHeaders, "no-headers", false, "leave the header out")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	completeFixed(cmd, "output", "json")
	completeFixed(cmd, "types", v1.EventTypeNormal, v1.EventTypeWarning)
	return cmd
}

// eventFilter chooses events.
type eventFilter struct {
	namespace string
	pod       *podRef // nil: all
	types     []string
}

func newEventFilter(args []string, f eventFlags) (eventFilter, error) {
	filter := eventFilter{namespace: f.namespace}
	if f.output != "" && f.output != "json" {
		return filter, fmt.Errorf("--output: %q is not a format: choose json", f.output)
	}
	for _, t := range f.types {
		i := slices.IndexFunc([]string{v1.EventTypeNormal, v1.EventTypeWarning}, func(known string) bool { return strings.EqualFold(known, t) })
		if i < 0 {
			return filter, fmt.Errorf("--types: %q is not a type of events: choose Normal or Warning", t)
		}
		filter.types = append(filter.types, []string{v1.EventTypeNormal, v1.EventTypeWarning}[i])
	}
	if len(args) == 1 {
		ref, err := parsePodRef(args[0], f.namespace)
		if err != nil {
			return filter, err
		}
		filter.pod = &ref
	}
	return filter, nil
}

func (f eventFilter) wants(e *v1.Event) bool {
	switch {
	case f.namespace != "" && e.Namespace != f.namespace:
		return false
	case len(f.types) > 0 && !slices.Contains(f.types, e.Type):
		return false
	case f.pod != nil:
		return e.InvolvedObject.Kind == "Pod" && f.pod.matches(e.InvolvedObject.Namespace, e.InvolvedObject.Name)
	}
	return true
}

// watchEvents prints the events that there are and then each that is recorded, until ctx is done.
func watchEvents(ctx context.Context, c *client, filter eventFilter, p *eventPrinter) error {
	resp, err := c.do(ctx, http.MethodGet, server.PathEvents, url.Values{"watch": {"true"}}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	var first []*v1.Event
	listed := false
	for {
		var e server.WatchedEvent
		if err := d.Decode(&e); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("the agent ended the watch: %w", err)
		}
		switch {
		case e.Type == server.Bookmark:
			listed = true
			err = p.print(first)
		case e.Object == nil || !filter.wants(e.Object):
		case listed:
			err = p.print([]*v1.Event{e.Object})
		default:
			first = append(first, e.Object)
		}
		if err != nil {
			return err
		}
	}
}

// eventPrinter prints events as `kubectl events` does, or as JSON.
type eventPrinter struct {
	out        io.Writer
	json       bool
	noHeader   bool
	namespaces bool

	columns table
	begun   bool
}

// print prints events of a watch.
func (p *eventPrinter) print(events []*v1.Event) error {
	if !p.json {
		return p.table(events, time.Now())
	}
	for _, e := range events {
		if err := printJSON(p.out, e); err != nil {
			return err
		}
	}
	return nil
}

func (p *eventPrinter) table(events []*v1.Event, now time.Time) error {
	if len(events) == 0 {
		return nil
	}
	var rows [][]string
	if !p.begun {
		p.begun = true
		p.namespaces = p.namespaces || slices.ContainsFunc(events, func(e *v1.Event) bool { return e.Namespace != events[0].Namespace })
		if !p.noHeader {
			rows = append(rows, p.cells("NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"))
		}
	}
	for _, e := range events {
		rows = append(rows, p.cells(e.Namespace, lastSeen(e, now), e.Type, oneLine(e.Reason),
			strings.ToLower(e.InvolvedObject.Kind)+"/"+e.InvolvedObject.Name, oneLine(e.Message)))
	}
	_, err := fmt.Fprintln(p.out, strings.Join(p.columns.lines(rows), "\n"))
	return err
}

func (p *eventPrinter) cells(namespace string, rest ...string) []string {
	if p.namespaces {
		return append([]string{namespace}, rest...)
	}
	return rest
}

// lastSeen is "5s", or "5s (x3 over 2m)" of an event that came more than once.
func lastSeen(e *v1.Event, now time.Time) string {
	last := duration.HumanDuration(max(0, now.Sub(e.LastTimestamp.Time)))
	if e.Count > 1 {
		return fmt.Sprintf("%s (x%d over %s)", last, e.Count, duration.HumanDuration(max(0, now.Sub(e.FirstTimestamp.Time))))
	}
	return last
}
