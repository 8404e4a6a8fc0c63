package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/test/controlplane/internal/plane"
)

// flags are the flags of one command, with the one that every command has.
type flags struct {
	*flag.FlagSet
	dir string
}

func newFlags(command string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet("controlplane "+command, flag.ContinueOnError)}
	f.StringVar(&f.dir, "dir", "", "the folder of the control plane (required)")
	return f
}

// parse returns the folder that was named.
func (f *flags) parse(args []string) (plane.Layout, error) {
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return "", err
	} else if err != nil {
		return "", errUsage // the flag set has said what is wrong
	}
	if f.NArg() > 0 {
		return "", fmt.Errorf("%w: unexpected argument %q", errUsage, f.Arg(0))
	}
	if f.dir == "" {
		return "", fmt.Errorf("%w: --dir is missing", errUsage)
	}
	dir, err := filepath.Abs(f.dir)
	return plane.Layout(dir), err
}

// inDir runs a command that has no flags of its own.
func inDir(command string, args []string, do func(plane.Layout) error) error {
	l, err := newFlags(command).parse(args)
	if err != nil {
		return err
	}
	return do(l)
}

func down(_ context.Context, args []string) error {
	f := newFlags("down")
	rm := f.Bool("rm", false, "remove the folder, also if nothing runs in it")
	l, err := f.parse(args)
	if err != nil {
		return err
	}
	if err := plane.Down(l); err != nil || !*rm {
		return err
	}
	return plane.Remove(l)
}

func up(ctx context.Context, args []string) error {
	f := newFlags("up")
	config := plane.Config{Args: map[string][]string{}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	f.DurationVar(&config.Timeout, "wait", 2*time.Minute, "how long it may take until everything is ready")
	f.BoolVar(&config.Remove, "rm", false, "remove the folder in the end")
	detach := f.Bool("detach", false, "go on in the background when everything is ready")
	stdin := f.Bool("stdin", false, "end when standard input ends: whoever holds the other side cannot leave it behind")
	f.Func("node", "make a kubeconfig for the node of this `NAME` (can be repeated)", func(name string) error {
		config.Nodes = append(config.Nodes, name)
		return nil
	})
	f.Func("arg", "run a component with an additional argument: `COMPONENT=ARGUMENT`, such as kube-apiserver=--v=4 (can be repeated)", func(s string) error {
		component, arg, ok := strings.Cut(s, "=")
		if !ok || !slices.Contains(plane.Components, component) {
			return fmt.Errorf("want COMPONENT=ARGUMENT with a component of %q", plane.Components)
		}
		config.Args[component] = append(config.Args[component], arg)
		return nil
	})
	l, err := f.parse(args)
	if err != nil {
		return err
	}
	if *detach && *stdin {
		return fmt.Errorf("%w: --detach and --stdin exclude each other", errUsage)
	}
	if *detach {
		return upDetached(ctx, args, l)
	}
	if *stdin {
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer end()
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end too
			end()
		}()
	}
	// Whoever reads the output may leave; that is no reason to end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	config.Dir, config.Program = string(l), ownProgram
	p, err := plane.New(config)
	if err != nil {
		return err
	}
	return p.Run(ctx, func() {
		if err := announce(os.Stdout, l); err != nil {
			config.Log.Error("say where the kubeconfig is", "error", err)
		}
	})
}

// ownProgram is the program that runs, also when its file has been replaced or removed since.
const ownProgram = "/proc/self/exe"

// upDetached runs up with the same arguments in a session of its own, shows its messages until it
// is ready, and leaves it.
func upDetached(ctx context.Context, args []string, l plane.Layout) error {
	// Of a flag that is given twice, the second counts.
	cmd := &exec.Cmd{Path: ownProgram, Args: slices.Concat([]string{"controlplane", "up"}, args, []string{"--detach=false"})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Not our own standard error: whoever reads it waits until all have closed it.
	messages, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	leave := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) }) // one that has ended needs no signal
	defer leave()
	shown := make(chan error, 1)
	go func() {
		_, err := os.Stderr.ReadFrom(messages)
		shown <- err
	}()
	// What it announces is the sign that it is ready. If it ends before, there is nothing to read.
	if n, _ := out.Read(make([]byte, 1)); n > 0 {
		return announce(os.Stdout, l)
	}
	if err := errors.Join(<-shown, cmd.Wait()); err != nil {
		return fmt.Errorf("the control plane has not started: %w", err)
	}
	return errors.New("the control plane was ended before it was ready")
}
