//go:build daemon

// Command podshim-containerd is containerd with the sandbox controller "podshim" and its task
// service in its own process. The program podshim must be in the same directory. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	"github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/urfave/cli/v2"

	"berth/bundle/podshim/rest"
	"berth/bundle/podshim/shims"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "containerd: %s\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m := shims.New(filepath.Join(filepath.Dir(self), "podshim"))
	m.Register()
	rest.Register()
	app := command.App()
	serve := app.Action
	// Only the daemon has an action here, not the subcommands. The pods must be restored before
	// it loads its plugins.
	app.Action = func(c *cli.Context) error {
		if c.Args().First() == "" {
			state, err := stateOf(c)
			if err == nil {
				err = m.Serve(state)
			}
			if err != nil {
				return fmt.Errorf("podshims: %w", err)
			}
		}
		return serve(c)
	}
	app.Commands = append(app.Commands, &cli.Command{
		Name: "end-podshims", Aliases: []string{"end-keepers"}, Usage: "terminate the pods that pod shims hold in a state directory, while no containerd serves it",
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("end-podshims: takes no arguments, and has %q; --state comes before it", c.Args().Slice())
			}
			state, err := stateOf(c)
			if err == nil {
				err = m.StopAll(c.Context, state)
			}
			return err
		},
	})
	return app.Run(args)
}

// stateOf returns the state directory that containerd will use.
func stateOf(c *cli.Context) (string, error) {
	if s := c.String("state"); s != "" {
		return filepath.Abs(s)
	}
	read := config.Config{State: defaults.DefaultStateDir}
	err := config.LoadConfig(context.Background(), c.String("config"), &read)
	if errors.Is(err, os.ErrNotExist) && !c.IsSet("config") {
		err = nil
	}
	return read.State, err
}
