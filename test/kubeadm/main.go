// Command kubeadm-cluster makes a cluster of two Berth nodes with kubeadm, each in namespaces of
// its own, so that the machine is left as it was.
//
// Owns: a folder with the two nodes' files, their namespaces, a registry with the images that
// kubeadm asks for, a way from the loopback to the API server.
// Reads: the programs beside it: berth, the control plane with kubeadm and kube-proxy, CoreDNS, the
// metrics server.
// Never: changes a file, a network or a cgroup of the machine that is not its own, or kubeadm.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `A cluster of two Berth nodes, made by kubeadm.

  kubeadm-cluster up DIR [--detach]   make it; it ends with this command, by SIGINT or SIGTERM
  kubeadm-cluster down DIR            end it and remove the folder
  kubeadm-cluster run DIR NODE ARG…   a program on a node (berth-1 or berth-2), such as kubeadm or crictl
`

func main() {
	// What PID 1 of a node, kubeadm and images run under other names.
	if f := applets[filepath.Base(os.Args[0])]; f != nil {
		exit(f(context.Background(), os.Args[1:]))
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exit(commands[os.Args[1]](ctx, os.Args[2:]))
}

// commands are what the first argument says; applets what the program's name says.
var (
	commands = map[string]func(ctx context.Context, args []string) error{
		"up": upCommand, "down": downCommand, "run": runCommand, "node": nodeCommand,
	}
	applets = map[string]func(ctx context.Context, args []string) error{
		"systemctl": systemctl, "client": client, "pause": pause,
	}
)

// exit ends with the code of a program that was run, if it is that which failed.
func exit(err error) {
	var code exitCode
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case err != nil:
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
