package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateCommands = flag.Bool("update-commands", false, "write docs/commands.md anew")

// docs/commands.md is made from the commands.
func TestCommandsDoc(t *testing.T) {
	const file = "../../docs/commands.md"
	root := newRootCommand()
	root.InitDefaultHelpFlag()
	var b strings.Builder
	b.WriteString(`# Every command

<!-- made from the commands by go test ./cmd/berth -run TestCommandsDoc -update-commands -->

` + "`berth COMMAND --help`" + ` says the same. Every command has

` + "```text\n" + root.PersistentFlags().FlagUsagesWrapped(wrapAt) + "```\n")
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID {
				writeCommand(&b, cmd)
			}
		}
	}
	if *updateCommands {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(was), b.String()); diff != "" {
		t.Errorf("docs/commands.md is out of date (-was +is): go test ./cmd/berth -run TestCommandsDoc -update-commands\n%s", diff)
	}
}

// wrapAt is the width of the page in columns.
const wrapAt = 130

// manyFlags is from how many flags on they are told of elsewhere.
const manyFlags = 60

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(b, "\n### %s\n\n", cmd.CommandPath())
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(b, "%s\n", forPage(text))
	var block []string
	if cmd.Runnable() && !cmd.HasSubCommands() {
		block = append(block, cmd.UseLine())
	}
	if cmd.Example != "" {
		block = append(block, "Examples:\n"+strings.TrimRight(cmd.Example, "\n"))
	}
	flags, n := cmd.LocalNonPersistentFlags(), 0
	flags.VisitAll(func(*pflag.Flag) { n++ })
	switch {
	case n > manyFlags:
		fmt.Fprintf(b, "\nIts %d flags are in [coverage.md](coverage.md#flags).\n", n)
	case flags.HasAvailableFlags():
		block = append(block, "Flags:\n"+strings.TrimRight(flags.FlagUsagesWrapped(wrapAt), "\n"))
	}
	if len(block) > 0 {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.Join(block, "\n\n"))
	}
	for _, sub := range cmd.Commands() {
		writeCommand(b, sub)
	}
}

// forPage is the text for a page, in which < and > would be marks.
func forPage(text string) string {
	return strings.NewReplacer("<", "&lt;", ">", "&gt;", "*", `\*`).Replace(text)
}
