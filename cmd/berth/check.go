package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/runtime/embedded"
)

func newCheckCommand(g *globalFlags) *cobra.Command {
	var (
		query  embedded.HostQuery
		output string
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell what this host has and lacks for running pods, and how the agent is",
		Long: `Tell what this host has and lacks for running pods, and what follows from it; and how its sockets, NUMA nodes,
CPUs and memory lie, with what that means for the policies of CPUs, memory and topology. If an agent runs, tell how it is, too,
and how far the node is from the thresholds at which pods are evicted.

The exit code is 1 if something is missing without which pods cannot run, or a condition of the agent has failed, otherwise 0.
The agent's conditions are explained in docs/health.md.`,
		Example: `  berth check
  berth check --port 80,443`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := append(embedded.CheckHost(query), checkRuntime())
			topology := checkTopology(os.DirFS("/"))
			client := newClient(g.runDir)
			agent := checkAgent(cmd.Context(), client, time.Now())
			thresholds := checkThresholds(cmd.Context(), client, time.Now())
			var err error
			switch out := cmd.OutOrStdout(); output {
			case "":
				err = printChecks(out, "CHECK", checks)
				for _, more := range []struct {
					title  string
					checks []embedded.HostCheck
				}{{"TOPOLOGY", topology}, {"AGENT", agent}, {"THRESHOLD", thresholds}} {
					if more.checks != nil {
						_, lineErr := fmt.Fprintln(out)
						err = errors.Join(err, lineErr, printChecks(out, more.title, more.checks))
					}
				}
			case "json":
				err = printJSON(out, slices.Concat(checks, topology, agent, thresholds))
			default:
				return fmt.Errorf("--output: %q is not a format: choose json", output)
			}
			if err != nil {
				return err
			}
			for _, c := range slices.Concat(checks, agent) {
				if c.Result == embedded.Missing || c.Result == conditionFailed {
					return errReported
				}
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
func checkRuntime() embedded.HostCheck {
	const name = "container runtime"
	if embedded.Available() {
		return embedded.HostCheck{Name: name, Result: embedded.OK, Found: "inside this program"}
	}
	return embedded.HostCheck{
		Name: name, Result: embedded.Warn, Found: "not inside this build of berth",
		Consequence: "berth run needs --container-runtime-endpoint; or build with \"make build\"",
	}
}

// printChecks prints a table; below each check stands what follows from it.
func printChecks(w io.Writer, title string, checks []embedded.HostCheck) error {
	rows := [][]string{{title, "RESULT", "FOUND"}}
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
