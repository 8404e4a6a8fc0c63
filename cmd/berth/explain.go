package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/journal"
)

func newExplainCommand(g *globalFlags) *cobra.Command {
	var namespace, output string
	cmd := &cobra.Command{
		Use:   "explain POD|MANIFEST",
		Short: "Tell what was decided for a pod, why, and how long it took",
		Long: `Tell what the agent decided for a pod, oldest first: when, by which component, why, how long it took and how it failed.

A manifest that was refused is named by its file. Pods that are gone are remembered for a while.`,
		Example: `  berth explain hello-web
  berth explain broken.yaml`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePods(cmd.Context(), g), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			c := newClient(g.runDir)
			subject, err := findSubject(cmd.Context(), c, args[0], namespace)
			if err != nil {
				return err
			}
			entries, err := c.entries(cmd.Context(), subject)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), entries)
			}
			return printTimeline(cmd.OutOrStdout(), entries, time.Local)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

// findSubject returns what the argument names: a manifest's file, or a pod, which may be gone.
func findSubject(ctx context.Context, c *client, arg, namespace string) (journal.Subject, error) {
	subjects, err := c.subjects(ctx)
	if err != nil {
		return journal.Subject{}, err
	}
	return chooseSubject(subjects, arg, namespace)
}

func chooseSubject(subjects []journal.Subject, arg, namespace string) (journal.Subject, error) {
	for _, s := range subjects {
		if s.Namespace == "" && namespace == "" && (s.Name == arg || s.Name == filepath.Base(arg)) {
			return s, nil
		}
	}
	ref, err := parsePodRef(arg, namespace)
	if err != nil {
		return journal.Subject{}, err
	}
	var known, found []podRef
	for _, s := range subjects {
		r := podRef{s.Namespace, s.Name}
		known = append(known, r)
		if r.Namespace != "" && ref.matches(r.Namespace, r.Name) && !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return journal.Subject{}, notFound(ref, known)
	case 1:
		return journal.Subject{Namespace: found[0].Namespace, Name: found[0].Name}, nil
	default:
		return journal.Subject{}, ambiguous(ref, found)
	}
}

// printTimeline prints the entries as a table of times and decisions.
func printTimeline(w io.Writer, entries []journal.Entry, zone *time.Location) error {
	rows := [][]string{{"TIME", "AFTER", "COMPONENT", "CONTAINER", "DECISION"}}
	day, before, incarnation := "", time.Time{}, entries[0].Subject.UID
	for _, e := range entries {
		at := e.Time.In(zone)
		if e.Subject.UID != incarnation {
			// Two incarnations follow each other, though their times may overlap.
			incarnation, before = e.Subject.UID, time.Time{}
			rows = append(rows, []string{fmt.Sprintf("%s, pod with UID %s:", e.Subject, e.Subject.UID)})
		}
		if d := at.Format(time.DateOnly); d != day {
			day = d
			rows = append(rows, []string{day})
		}
		rows = append(rows, []string{at.Format("15:04:05.000"), formatAfter(before, e.Time), e.Component, e.Container, entryText(e)})
		if e.Error != "" {
			rows = append(rows, []string{"", "", "", "", "  error: " + oneLine(e.Error)})
		}
		before = e.Time
	}
	var t table
	for _, r := range rows {
		if len(r) > 1 { // the others are headings
			t.measure(r)
		}
	}
	for _, r := range rows {
		line := r[0]
		if len(r) > 1 {
			line = t.line(r)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// entryText says in one line what was decided, why, how often and how long it took.
func entryText(e journal.Entry) string {
	text := oneLine(e.Decision)
	if e.Why != "" {
		text += ": " + oneLine(e.Why)
	}
	var notes []string
	if e.Took > 0 {
		notes = append(notes, "took "+roundDuration(e.Took).String())
	}
	if e.Count > 1 {
		notes = append(notes, fmt.Sprintf("%d times in a row", e.Count))
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, ", ") + ")"
	}
	return text
}

// formatAfter is the time since the entry before, or nothing for the first.
func formatAfter(before, t time.Time) string {
	if before.IsZero() {
		return ""
	}
	return "+" + roundDuration(max(0, t.Sub(before))).String()
}

// roundDuration keeps three digits or so.
func roundDuration(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
