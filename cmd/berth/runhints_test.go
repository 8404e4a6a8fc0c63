package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A shell that runs the command line of an agent starts one with the same arguments.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args      []string
		variables map[string]string
		want      string
	}{
		{[]string{"berth", "run", "m"}, nil, "berth run m"},
		{
			[]string{"bin/berth", "run", "--root-dir", "/my root", "--run-dir=/r", "--rm=false", "my m/"},
			nil, "bin/berth run --root-dir '/my root' --run-dir=/r --rm=false 'my m/'",
		},
		{[]string{"berth", "run", "--eviction-hard", "memory.available<500Mi", "https://h/p?a=b&c"}, nil, "berth run --eviction-hard 'memory.available<500Mi' 'https://h/p?a=b&c'"},
		{[]string{"berth", "run", "it's", "$HOME", "~", "", "a\nb", "*"}, nil, `berth run 'it'\''s' '$HOME' '~' '' 'a` + "\n" + `b' '*'`},
		{[]string{"berth", "run", "m"}, map[string]string{"BERTH_ROOT_DIR": "/a b", "BERTH_MAX_PODS": "7", "BERTH_RM": "true"}, "berth run m --max-pods=7 '--root-dir=/a b'"},
		{[]string{"berth", "run", "--root-dir", "/x", "m"}, map[string]string{"BERTH_ROOT_DIR": "/y"}, "berth run --root-dir /x m"},
		{[]string{"berth", "run", "--", "m"}, map[string]string{"BERTH_EVICTION_HARD": "memory.available<1Gi"}, "berth run '--eviction-hard=memory.available<1Gi' -- m"},
	} {
		t.Run(c.want, func(t *testing.T) {
			for name, value := range c.variables {
				t.Setenv(name, value)
			}
			cmd := newRunCommand(&globalFlags{})
			got := ""
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				got = commandLine(cmd, c.args)
				return nil
			}
			cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return applyEnvironment(cmd) }
			cmd.Flags().String("run-dir", "", "")
			cmd.SetArgs(c.args[2:])
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			read, err := exec.Command("sh", "-c", `printf '%s\0' `+got).Output()
			if err != nil {
				t.Fatal(err)
			}
			words := strings.Split(strings.TrimSuffix(string(read), "\x00"), "\x00")
			words = slices.DeleteFunc(words, func(word string) bool {
				name, _, ok := strings.Cut(strings.TrimPrefix(word, "--"), "=")
				return ok && c.variables[variableOf(name)] != ""
			})
			if !slices.Equal(words, c.args) {
				t.Errorf("a shell reads %q, want %q", words, c.args)
			}
		})
	}
}
