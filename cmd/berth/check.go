package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/embedded"
)

func newCheckCommand(*globalFlags) *cobra.Command {
	var (
		query  embedded.HostQuery
		output string
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell what this host has and lacks for running pods",
		Long: `Tell what this host has and lacks for running pods, and what follows from it.

The exit code is 1 if something is missing without which pods cannot run, otherwise 0.`,
		Example: `  berth check
  berth check --port 80,443`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := append(embedded.CheckHost(query), checkRuntime(embedded.Available()))
			switch output {
			case "":
				if err := printChecks(cmd.OutOrStdout(), checks); err != nil {
					return err
				}
			case "json":
				if err := printJSON(cmd.OutOrStdout(), checks); err != nil {
					return err
				}
			default:
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			if slices.ContainsFunc(checks, func(c embedded.HostCheck) bool { return c.Result == embedded.Missing }) {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&query.Root, "root-dir", defaultRootDir, "directory of everything that the agent will keep")
	cmd.Flags().IntSliceVar(&query.Ports, "port", nil, "also check that these TCP ports are free, which pods will want of the host")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	completeFixed(cmd, "output", "json")
	return cmd
}

// checkRuntime says whether this program brings a runtime along.
func checkRuntime(available bool) embedded.HostCheck {
	const name = "container runtime"
	if available {
		return embedded.HostCheck{Name: name, Result: embedded.OK, Found: "inside this program"}
	}
	return embedded.HostCheck{
		Name: name, Result: embedded.Warn, Found: "not inside this build of berth",
		Consequence: "berth run needs --container-runtime-endpoint; or build with \"make build\"",
	}
}

// printChecks prints a table; below each check stands what follows from it.
func printChecks(w io.Writer, checks []embedded.HostCheck) error {
	rows := [][]string{{"CHECK", "RESULT", "FOUND"}}
	for _, c := range checks {
		rows = append(rows, []string{c.Name, string(c.Result), oneLine(c.Found)})
		if c.Consequence != "" {
			rows = append(rows, []string{"", "", "→ " + oneLine(c.Consequence)})
		}
	}
	var t table
	for _, l := range t.lines(rows) {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}
