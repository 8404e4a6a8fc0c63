package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/server"
)

// execFlags are the flags of `berth exec`.
type execFlags struct {
	namespace string
	container string
	stdin     bool
	tty       bool
}

func newExecCommand(g *globalFlags) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec POD -- COMMAND [ARGUMENT...]",
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
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return completePods(cmd.Context(), g), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), newClient(g.runDir), args[0], args[1:], streams{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	fl.StringVarP(&f.container, "container", "c", "", "container (default: the pod's first)")
	fl.BoolVarP(&f.stdin, "stdin", "i", false, "give the command our input")
	fl.BoolVarP(&f.tty, "tty", "t", false, "run the command on a terminal")
	return cmd
}

// streams are where a command reads and writes.
type streams struct {
	in          io.Reader
	out, errOut io.Writer
}

func (f execFlags) run(ctx context.Context, c *client, arg string, command []string, s streams) (err error) {
	p, err := findPod(ctx, c, arg, f.namespace)
	if err != nil {
		return err
	}
	container := f.container
	if container == "" {
		container = defaultContainer(p, s.errOut)
	}
	if !slices.Contains(containerNames(p), container) {
		return fmt.Errorf("pod %q has no container %q; it has %s", p.Name, container, strings.Join(containerNames(p), ", "))
	}
	query := url.Values{"command": command, "output": {"1"}}
	r := remote{out: s.out}
	if f.stdin {
		query.Set("input", "1")
		r.in = s.in
	}
	if f.tty {
		if r.terminal = inputTerminal(s.in); r.terminal == nil || !f.stdin {
			fmt.Fprintln(s.errOut, "No terminal: the input is none, or --stdin is not given")
			r.terminal = nil
		}
	}
	if r.terminal != nil {
		query.Set("tty", "1")
	} else {
		query.Set("error", "1")
		r.errOut = s.errOut
	}
	path := strings.Join([]string{server.PathExec, p.Namespace, p.Name, string(p.UID), container}, "/")
	conn, err := c.openStreams(ctx, path, query)
	if err != nil {
		return err
	}
	defer conn.Close()
	if r.terminal != nil {
		// From here on the terminal at the other end does what ours did: echo, line editing, signals.
		fd := int(r.terminal.Fd())
		before, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("prepare the terminal: %w", err)
		}
		defer func() { err = errors.Join(err, term.Restore(fd, before)) }()
	}
	return r.run(ctx, conn)
}

// inputTerminal returns the input if it is a terminal, or nil.
func inputTerminal(in io.Reader) *os.File {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// exitCodeError ends the program with the exit code of a remote command, which has said itself what was wrong.
type exitCodeError int

func (e exitCodeError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", int(e))
}
