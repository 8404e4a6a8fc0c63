package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
)

// joinFlags are the flags of the commands that join the user to a program in a container.
type joinFlags struct {
	namespace string
	container string
	stdin     bool
	tty       bool
	quiet     bool
	// runningTimeout is how long to wait for the pod to run.
	runningTimeout time.Duration
}

func (f *joinFlags) add(cmd *cobra.Command, g *globalFlags) {
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	fl.StringVarP(&f.container, "container", "c", "", "container (default: the one that the annotation kubectl.kubernetes.io/default-container names, or the pod's first)")
	fl.BoolVarP(&f.stdin, "stdin", "i", false, "give the program our input")
	fl.BoolVarP(&f.tty, "tty", "t", false, "our input is a terminal: the program has one too")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only what the program writes")
	addRunningTimeout(fl, &f.runningTimeout)
	completeContainer(cmd, g)
}

// find returns the pod and the container that are meant.
func (f joinFlags) find(ctx context.Context, c *client, arg string, s streams) (*v1.Pod, string, error) {
	if err := awaitRunning(ctx, c, arg, f.namespace, f.runningTimeout); err != nil {
		return nil, "", err
	}
	p, err := findPod(ctx, c, arg, f.namespace)
	if err != nil {
		return nil, "", err
	}
	errOut := s.errOut
	if f.quiet {
		errOut = io.Discard
	}
	container, err := chooseContainer(p, f.container, errOut)
	return p, container, err
}

// streams are where a command reads and writes.
type streams struct {
	in          io.Reader
	out, errOut io.Writer
}

func streamsOf(cmd *cobra.Command) streams {
	return streams{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()}
}

// containerPath is the path of a stream of the container.
func containerPath(verb string, p *v1.Pod, container string) string {
	return strings.Join([]string{verb, p.Namespace, p.Name, string(p.UID), container}, "/")
}

// join opens the streams at the path and returns when they have ended, with what run returns.
func (r remote) join(ctx context.Context, c *client, path string, query url.Values) (err error) {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	maps.Copy(query, r.query())
	conn, err := c.openStreams(ctx, path, query, remotecommand.StreamProtocolV4Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	if r.terminal != nil {
		var leave context.CancelFunc
		// The terminal must not be left as it is then.
		ctx, leave = signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGHUP)
		defer leave()
		// From here on the terminal at the other end does what ours did: echo, line editing,
		// signals.
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

// chooseContainer returns the container of this name, or the pod's default if that is empty.
func chooseContainer(p *v1.Pod, name string, errOut io.Writer) (string, error) {
	if name == "" {
		return defaultContainer(p, errOut), nil
	}
	if names := containerNames(p); !slices.Contains(names, name) {
		return "", fmt.Errorf("pod %q has no container %q; it has %s", p.Name, name, strings.Join(names, ", "))
	}
	return name, nil
}
