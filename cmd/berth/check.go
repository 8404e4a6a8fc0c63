package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/host/preflight"
	"berth/internal/runtime/embedded"
)

type checkFlags struct {
	query  preflight.Query
	output string
	fix    bool
	dryRun bool
}

func newCheckCommand(g *globalFlags) *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check this host and the health of the agent",
		Long: `Check whether this host can run pods: what is missing, and the consequences. Show its sockets, NUMA nodes, CPUs and memory, and how the
CPU, memory and topology manager policies apply to them. If an agent is running, also report its health and how far the node is from
its eviction thresholds.

With --fix, first fix what can be fixed without side effects: load kernel modules and enable forwarding, now and at each boot by files in
/etc/modules-load.d and /etc/sysctl.d. Each fix is reported. Packages, firewall rules and settings that may have been disabled on purpose
are not changed. --dry-run only prints the fixes.

The exit code is 1 if a requirement for running pods is missing, a health condition of the agent has failed, or a fix has failed;
otherwise 0. docs/health.md explains the health conditions.`,
		Example: `  berth check
  berth check --port 80,443
  berth check --fix --dry-run`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.check(cmd.Context(), newClient(g.runDir), preflight.NewFixer(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&f.query.Root, "root-dir", "", "root directory of the agent (default: that of the running agent, or "+defaultRootDir+")")
	cmd.Flags().IntSliceVar(&f.query.Ports, "port", nil, "also check that these TCP ports are free, which pods will want of the host")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json")
	cmd.Flags().BoolVar(&f.fix, "fix", false, "fix what can be fixed without side effects")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "with --fix: only print the fixes")
	completeFixed(cmd, "output", "json")
	return cmd
}

type checkPart struct {
	title  string
	checks []preflight.Check
}

func (f checkFlags) check(ctx context.Context, c *client, fixer preflight.Fixer, out io.Writer) error {
	switch {
	case f.output != "" && f.output != "json":
		return fmt.Errorf("--output: %q is not a format: choose json", f.output)
	case f.dryRun && !f.fix:
		return errors.New("--dry-run is for --fix")
	case f.fix && !f.dryRun && os.Geteuid() != 0:
		return errors.New("berth check --fix must be root, as it changes the machine's settings: try with sudo, or --dry-run")
	}
	fixes := f.mend(ctx, fixer)
	running, err := c.version(ctx)
	if err != nil {
		running = server.Version{} // checkAgent reports the error
	}
	f.query.Root = cmp.Or(f.query.Root, running.RootDir, defaultRootDir)
	now := time.Now()
	parts := []checkPart{
		{"FIX", fixes},
		{"CHECK", append(preflight.Run(f.query), checkRuntime(running))},
		{"TOPOLOGY", checkTopology(os.DirFS("/"))},
		{"AGENT", checkAgent(ctx, c, now)},
		{"THRESHOLD", checkThresholds(ctx, c, now)},
	}
	parts = slices.DeleteFunc(parts, func(p checkPart) bool { return p.checks == nil })
	var all []preflight.Check
	for _, p := range parts {
		all = append(all, p.checks...)
	}
	if f.output == "json" {
		err = printJSON(out, all)
	} else {
		err = printParts(out, parts)
	}
	if err != nil {
		return err
	}
	bad := []preflight.Result{preflight.Missing, preflight.NotFixed, conditionFailed}
	if slices.ContainsFunc(all, func(c preflight.Check) bool { return slices.Contains(bad, c.Result) }) {
		return errReported
	}
	return nil
}

// mend applies the available fixes if --fix is set, and returns the result of each.
func (f checkFlags) mend(ctx context.Context, fixer preflight.Fixer) []preflight.Check {
	if !f.fix {
		return nil
	}
	plan := fixer.Plan()
	if len(plan) == 0 {
		return []preflight.Check{{Name: "-", Result: preflight.OK, Found: "there is nothing that --fix mends"}}
	}
	if !f.dryRun {
		return fixer.Do(ctx, plan)
	}
	var planned []preflight.Check
	for _, fix := range plan {
		planned = append(planned, preflight.Check{Name: fix.Name, Result: preflight.Planned, Found: fix.What})
	}
	return planned
}

func printParts(out io.Writer, parts []checkPart) (err error) {
	for i, p := range parts {
		if i > 0 {
			_, err = fmt.Fprintln(out)
		}
		if err = errors.Join(err, printChecks(out, p.title, p.checks)); err != nil {
			return err
		}
	}
	return nil
}

// checkRuntime reports the runtime of the agent. Without an agent, it reports whether this program
// has an embedded runtime.
func checkRuntime(running server.Version) preflight.Check {
	const name = "container runtime"
	if running.RuntimeName != "" {
		return preflight.Check{Name: name, Result: preflight.OK, Found: fmt.Sprintf("%s %s of the agent, at %s", running.RuntimeName, running.RuntimeVersion, running.RuntimeEndpoint)}
	}
	if embedded.Available() {
		return preflight.Check{Name: name, Result: preflight.OK, Found: "inside this program"}
	}
	return preflight.Check{
		Name: name, Result: preflight.Warn, Found: "not inside this build of berth",
		Consequence: "berth run needs --container-runtime-endpoint; or build with \"make build\"",
	}
}

// printChecks prints a table, with the consequence of each check below it.
func printChecks(w io.Writer, title string, checks []preflight.Check) error {
	rows := [][]string{{title, "RESULT", "FOUND"}}
	for _, c := range checks {
		rows = append(rows, []string{c.Name, string(c.Result), explain.OneLine(c.Found)})
		if c.Consequence != "" {
			rows = append(rows, []string{"", "", "→ " + explain.OneLine(c.Consequence)})
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
