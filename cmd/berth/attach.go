package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// attachFlags are the flags of `berth attach`.
type attachFlags struct {
	joinFlags
	detachKeys string
}

func newAttachCommand(g *globalFlags) *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "attach POD [-c CONTAINER]",
		Short: "Join the program that a container runs",
		Long: `Show what a container's own program writes from now on, and give it our input with --stdin. What it wrote before is in its log.

The program goes on when we leave. At a terminal (-it), where Ctrl-C goes to the program, the keys of --detach-keys leave it.`,
		Example: `  berth attach hello-web
  berth attach shell -c main -it`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePod(g, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), newClient(g.runDir), args[0], streamsOf(cmd))
		},
	}
	f.add(cmd, g)
	cmd.Flags().StringVar(&f.detachKeys, "detach-keys", "ctrl-p,ctrl-q", "keys that leave the program, at a terminal; empty: none")
	return cmd
}

func (f attachFlags) run(ctx context.Context, c *client, arg string, s streams) error {
	keys, err := parseKeys(f.detachKeys)
	if err != nil {
		return fmt.Errorf("--detach-keys: %w", err)
	}
	p, name, err := f.find(ctx, c, arg, s)
	if err != nil {
		return err
	}
	if phase := p.Status.Phase; pod.IsTerminal(phase) {
		return fmt.Errorf("cannot attach a container in a completed pod; current phase is %s", phase)
	}
	tell := func(format string, a ...any) {
		if !f.quiet {
			fmt.Fprintf(s.errOut, format+"\n", a...)
		}
	}
	hasStdin, hasTTY := consoleOf(p, name)
	r := remote{out: s.out, errOut: s.errOut, redraw: true}
	if hasTTY {
		r.errOut = nil
	}
	switch {
	case !f.stdin:
	case !hasStdin:
		tell("Unable to use the input - container %s was started without one (stdin: true)", name)
	default:
		r.in = s.in
	}
	switch {
	case f.tty && !hasTTY:
		tell("Unable to use a TTY - container %s did not allocate one", name)
	case r.in == nil || !hasTTY:
	default:
		if r.terminal = inputTerminal(s.in); r.terminal == nil && f.tty {
			tell("Unable to use a TTY - input is not a terminal or the right kind of file")
		}
	}
	if r.terminal != nil {
		if len(keys) > 0 {
			r.in = &detachReader{in: r.in, keys: keys}
		}
		tell("All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.")
		tell("If you don't see a command prompt, try pressing enter.")
	}
	err = r.join(ctx, c, containerPath(server.PathAttach, p, name), nil)
	detached := errors.Is(err, errDetached)
	if detached {
		err = nil
	}
	if err == nil && r.terminal != nil && (detached || p.Spec.RestartPolicy == v1.RestartPolicyAlways) {
		tell("Session ended, resume using 'berth attach %s -c %s -i -t' command when the pod is running", p.Name, name)
	}
	return err
}

// consoleOf says what the container's program was started with.
func consoleOf(p *v1.Pod, name string) (stdin, tty bool) {
	if c := pod.FindContainer(&p.Spec, name); c != nil {
		return c.Stdin, c.TTY
	}
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == name {
			return e.Stdin, e.TTY
		}
	}
	return false, false
}

// errDetached says that the user leaves a program that goes on.
var errDetached = errors.New("detached")

// parseKeys reads keys as kubectl and docker name them: characters, or ctrl- and a letter or one of
// @[\]^_, with commas between them.
func parseKeys(s string) ([]byte, error) {
	var keys []byte
	if s == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(s, ",") {
		char, isControl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
		switch {
		case isControl && len(char) == 1 && strings.Contains("@abcdefghijklmnopqrstuvwxyz[\\]^_", char):
			keys = append(keys, strings.ToUpper(char)[0]-'@')
		case len(name) == 1:
			keys = append(keys, name[0])
		default:
			return nil, fmt.Errorf(`%q is not a key: expected a character, or one like "ctrl-p"`, name)
		}
	}
	return keys, nil
}

// detachReader passes input on until it reads the keys, when it fails with errDetached. Keys that
// may become theirs are held back.
type detachReader struct {
	in   io.Reader
	keys []byte
	held int // so many of keys were read and not passed on
}

// Read implements io.Reader. The buffer must have room for what is held back.
func (r *detachReader) Read(b []byte) (int, error) {
	if len(b) <= len(r.keys) {
		return 0, io.ErrShortBuffer
	}
	read := make([]byte, len(b)-len(r.keys))
	n, err := r.in.Read(read)
	out := b[:0]
	for _, key := range read[:n] {
		if key != r.keys[r.held] {
			out = append(out, r.keys[:r.held]...)
			r.held = 0
		}
		if key != r.keys[r.held] {
			out = append(out, key)
			continue
		}
		if r.held++; r.held == len(r.keys) {
			return len(out), errDetached
		}
	}
	if err != nil {
		out = append(out, r.keys[:r.held]...)
		r.held = 0
	}
	return len(out), err
}
