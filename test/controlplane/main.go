// Command controlplane is a Kubernetes control plane for tests, complete and real in one program:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, a process each, on the
// loopback, with everything in one folder; and kubectl.
//
// It is built by `make controlplane`. Without the build tag controlplane it compiles, but has no
// components.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth/test/controlplane/internal/plane"
)

const usage = `A Kubernetes control plane for tests.

  controlplane up --dir DIR           start it; it ends with this command, by SIGINT or SIGTERM
  controlplane down --dir DIR         end it; with --rm also remove the folder
  controlplane status --dir DIR       wait until it has started, say where its kubeconfig is
  controlplane stop-apiserver --dir DIR
  controlplane start-apiserver --dir DIR
  controlplane kubectl …              kubectl; also if this program is called kubectl

The folder has admin.kubeconfig, node-NAME.kubeconfig for every --node NAME, pki/ca.crt, and logs/. controlplane COMMAND -h shows the flags.
`

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run()) }

func run() int {
	if name := filepath.Base(os.Args[0]); programs[name] != nil {
		return programs[name]()
	}
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	name, args := os.Args[1], os.Args[2:]
	if program := programs[name]; program != nil {
		os.Args = os.Args[1:]
		return program()
	}
	command := commands[name]
	switch {
	case command != nil:
	case slices.Contains([]string{"help", "-h", "-help", "--help"}, name):
		fmt.Print(usage)
		return 0
	case name == "kubectl" || slices.Contains(plane.Components, name):
		fmt.Fprintf(os.Stderr, "controlplane: %s is not in this program: build it with `make controlplane`\n", name)
		return exitFailure
	default:
		fmt.Fprintf(os.Stderr, "controlplane: no command %q\n\n%s", name, usage)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch err := command(ctx, args); {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		return exitUsage
	default:
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		return exitFailure
	}
}

// errUsage is what a command line is wrong with.
var errUsage = errors.New("wrong command line (-h shows the flags)")

// commands are what the program does besides being a component.
var commands = map[string]func(ctx context.Context, args []string) error{
	"up":   up,
	"down": down,
	"status": func(_ context.Context, args []string) error {
		return inDir("status", args, func(l plane.Layout) error {
			if err := plane.Status(l); err != nil {
				return err
			}
			return announce(os.Stdout, l)
		})
	},
	"stop-apiserver": func(_ context.Context, args []string) error {
		return inDir("stop-apiserver", args, plane.StopAPIServer)
	},
	"start-apiserver": func(_ context.Context, args []string) error {
		return inDir("start-apiserver", args, plane.StartAPIServer)
	},
}

// announce writes what a shell can evaluate.
func announce(w io.Writer, l plane.Layout) error {
	_, err := fmt.Fprintf(w, "export KUBECONFIG='%s'\n", strings.ReplaceAll(l.Kubeconfig(), "'", `'\''`))
	return err
}
