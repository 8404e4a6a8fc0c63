package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
)

// copyFlags are the flags of `berth cp`.
type copyFlags struct {
	namespace  string
	container  string
	noPreserve bool
	retries    int
}

func newCopyCommand(g *globalFlags) *cobra.Command {
	var f copyFlags
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files and folders to and from containers",
		Long: `Copy a file or a folder between this machine and a container. One of FROM and TO is [NAMESPACE/]POD:PATH.

It is done by the tar of the container, so there must be one. A relative path in the container begins at its working directory.

What comes from a container is not trusted: nothing is written outside of TO, and links that lead out of it are left out with a warning, as are
devices.`,
		Example: `  berth cp settings.yaml web:/etc/web/
  berth cp web:/var/log/web ./logs -c main
  berth cp site default/web:/srv/site`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if strings.ContainsAny(toComplete, "./:") {
				return nil, cobra.ShellCompDirectiveDefault
			}
			var names []string
			for _, name := range completePods(cmd.Context(), g) {
				names = append(names, name+":")
			}
			return names, cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), newClient(g.runDir), args[0], args[1], streamsOf(cmd))
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pod, when its name is not enough")
	fl.StringVarP(&f.container, "container", "c", "", "container (default: the one that the annotation kubectl.kubernetes.io/default-container names, or the pod's first)")
	fl.BoolVar(&f.noPreserve, "no-preserve", false, "do not keep owner and permissions in the container")
	fl.IntVar(&f.retries, "retries", 0, "how often a copy from a container that breaks off is begun anew; negative: until it is whole")
	return cmd
}

func (f copyFlags) run(ctx context.Context, c *client, from, to string, s streams) error {
	source, err := parseFileSpec(from)
	if err != nil {
		return err
	}
	target, err := parseFileSpec(to)
	if err != nil {
		return err
	}
	if (source.pod == "") == (target.pod == "") {
		return fmt.Errorf("one of %q and %q must be [NAMESPACE/]POD:PATH, and the other one a path of this machine", from, to)
	}
	join := joinFlags{namespace: f.namespace, container: f.container}
	p, container, err := join.find(ctx, c, source.pod+target.pod, s)
	if err != nil {
		return err
	}
	remote := remoteFiles{client: c, pod: p, container: container, errOut: &lockedWriter{out: s.errOut}}
	if target.pod != "" {
		var unpack []string
		if f.noPreserve {
			unpack = []string{"--no-same-permissions", "--no-same-owner"}
		}
		return remote.put(ctx, source.path, target.path, unpack)
	}
	for try := 1; ; try++ {
		err := remote.get(ctx, source.path, target.path)
		if !errors.Is(err, errBrokeOff) || ctx.Err() != nil || f.retries >= 0 && try > f.retries {
			return err
		}
		fmt.Fprintf(s.errOut, "%v; copying anew (%d)\n", err, try)
		select {
		case <-time.After(copyRetryDelay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// copyRetryDelay is the time between two tries to copy: an agent that is replaced is back then.
const copyRetryDelay = time.Second

// fileSpec is a path of this machine, or of a pod's container.
type fileSpec struct{ pod, path string }

// parseFileSpec reads [[NAMESPACE/]POD:]PATH. What begins as paths do is one, whatever it contains.
func parseFileSpec(arg string) (fileSpec, error) {
	pod, file, remote := strings.Cut(arg, ":")
	if !remote || filepath.IsAbs(arg) || strings.HasPrefix(arg, "./") || strings.HasPrefix(arg, "../") {
		pod, file = "", arg
	} else if pod == "" {
		return fileSpec{}, fmt.Errorf("%q: expected [[NAMESPACE/]POD:]PATH", arg)
	}
	if file == "" {
		return fileSpec{}, fmt.Errorf("%q: the path is empty", arg)
	}
	return fileSpec{pod, file}, nil
}

// remoteFiles are the files of a container.
type remoteFiles struct {
	client    *client
	pod       *v1.Pod
	container string
	errOut    io.Writer
}

// errBrokeOff says that the connection ended before a copy did.
var errBrokeOff = errors.New("the copy broke off")

// errNoProgram is the middle of a sentence.
var errNoProgram = errors.New("no")

// exec runs a program in the container.
func (f remoteFiles) exec(ctx context.Context, in io.Reader, out io.Writer, command ...string) error {
	r := remote{in: in, out: out, errOut: f.errOut}
	err := r.join(ctx, f.client, containerPath(server.PathExec, f.pod, f.container), url.Values{"command": command})
	var code exitCodeError
	switch {
	case err == nil, errors.As(err, &code), ctx.Err() != nil:
		return err
	case strings.Contains(err.Error(), fmt.Sprintf("exec: %q: ", command[0])): // by the runtime
		return fmt.Errorf("container %q of pod %q has %w %s, without which nothing is copied: %w", f.container, f.pod.Name, errNoProgram, command[0], err)
	}
	return fmt.Errorf("%w: %w", errBrokeOff, err)
}

// hasTar fails with what there is to say to a container that has none.
func (f remoteFiles) hasTar(ctx context.Context) error {
	f.errOut = io.Discard
	if err := f.exec(ctx, nil, io.Discard, "tar", "--version"); errors.Is(err, errNoProgram) {
		return err
	}
	return nil
}

// isFolder reports whether the path is a folder of a container that can tell.
func (f remoteFiles) isFolder(ctx context.Context, name string) bool {
	f.errOut = io.Discard
	return f.exec(ctx, nil, io.Discard, "test", "-d", name) == nil
}

// put copies a file or folder into the container, where tar unpacks it with the options.
func (f remoteFiles) put(ctx context.Context, from, to string, unpack []string) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	name := path.Clean(to)
	if strings.HasSuffix(to, "/") || f.isFolder(ctx, to) {
		abs, err := filepath.Abs(from) // of . and .., too
		if err != nil {
			return err
		}
		name = path.Join(to, filepath.Base(abs))
	}
	command := slices.Concat([]string{"tar"}, unpack, []string{"-xmf", "-", "-C", path.Dir(name)})
	in, archive := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(archive, from, path.Base(name), f.errOut)
		packed <- err
		archive.CloseWithError(err)
	}()
	err := f.exec(ctx, in, f.errOut, command...)
	in.CloseWithError(err) // pack does not go on for nobody
	if perr := <-packed; perr != nil && (err == nil || !errors.Is(perr, err)) {
		return perr
	}
	if errors.Is(err, errBrokeOff) {
		// The runtime's word on a program that it cannot start gets lost when much was sent to it.
		return cmp.Or(f.hasTar(ctx), err)
	}
	return err
}

// get copies a file or folder out of the container.
func (f remoteFiles) get(ctx context.Context, from, to string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	archive, out := io.Pipe()
	unpacked := make(chan error, 1)
	name := path.Base(path.Clean(from))
	go func() {
		err := unpack(archive, name, to, f.errOut)
		if err != nil {
			cancel(err)
		}
		archive.CloseWithError(err)
		unpacked <- err
	}()
	err := f.exec(ctx, nil, out, "tar", "-C", path.Dir(path.Clean(from)), "-cf", "-", "./"+name)
	out.CloseWithError(err)
	uerr := <-unpacked
	if err != nil && (uerr == nil || errors.Is(uerr, err)) {
		return err
	}
	return uerr
}
