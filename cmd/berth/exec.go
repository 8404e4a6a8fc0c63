package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"berth/internal/api/server"
)

// execFlags are the flags of `berth exec`.
type execFlags struct {
	joinFlags
}

func newExecCommand(g *globalFlags) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a container",
		Long: `Run a command in a container that runs. What it writes is written, and its exit code is the exit code.

Without --stdin, the command has no input.`,
		Example: `  berth exec web -- ls -l /
  berth exec -it web -c main -- sh
  berth exec -i web -- tar xf - < files.tar`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New(`expected POD -- COMMAND, as in "berth exec web -- ls"`)
			}
			return nil
		},
		ValidArgsFunction: completePod(g, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), newClient(g.runDir), args[0], args[1:], streamsOf(cmd))
		},
	}
	f.add(cmd, g)
	return cmd
}

func (f execFlags) run(ctx context.Context, c *client, arg string, command []string, s streams) error {
	p, container, err := f.find(ctx, c, arg, s)
	if err != nil {
		return err
	}
	r := remote{out: s.out, errOut: s.errOut}
	if f.stdin {
		r.in = s.in
	}
	if f.tty && f.stdin {
		if r.terminal = inputTerminal(s.in); r.terminal != nil {
			r.errOut = nil
		} else if !f.quiet {
			fmt.Fprintln(s.errOut, "Unable to use a TTY - input is not a terminal or the right kind of file")
		}
	}
	return r.join(ctx, c, containerPath(server.PathExec, p, container), url.Values{"command": command})
}

// exitCodeError ends the program with the exit code of a remote command, which has said itself what
// was wrong.
type exitCodeError int

func (e exitCodeError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", int(e))
}
