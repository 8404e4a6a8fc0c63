package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/config"
)

// suggest adds a suggestion to the command's errors about unknown flags and subcommands.
func suggest(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return suggestFlag(cmd.Flags(), err) })
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.DisableFlagsInUseLine = cobra.ArbitraryArgs, true
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		}
	}
}

// unknownCommand returns the error for an unknown command below cmd, with a suggestion.
func unknownCommand(cmd *cobra.Command, name string) error {
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(known, append([]string{c.Name()}, c.Aliases...)...)
		}
	}
	err := fmt.Errorf("unknown command %q for %q", name, cmd.CommandPath())
	if near := config.Nearest(name, known); near != "" {
		return fmt.Errorf("%w; did you mean %q?", err, near)
	}
	return fmt.Errorf("%w; there are %s", err, strings.Join(known, ", "))
}

// suggestFlag adds a suggestion to the error of an unknown flag.
func suggestFlag(flags *pflag.FlagSet, err error) error {
	var unknown interface{ GetSpecifiedName() string }
	if !errors.As(err, &unknown) {
		return err
	}
	var known []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Deprecated == "" {
			known = append(known, f.Name)
		}
	})
	name := strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")
	near := config.Nearest(name, known)
	if near == "" || near == unknown.GetSpecifiedName() || len(name) < 2 {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, near)
}
