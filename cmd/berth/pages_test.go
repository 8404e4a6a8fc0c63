package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// TestPages makes what packages have of the command line, in the folder BERTH_PAGES if there is
// one: a man page of every command, with every flag and every line of its examples, and the
// completions of three shells.
func TestPages(t *testing.T) {
	dir := os.Getenv("BERTH_PAGES")
	if dir == "" {
		dir = t.TempDir()
	}
	man, completions := filepath.Join(dir, "man"), filepath.Join(dir, "completions")
	for _, folder := range []string{man, completions} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := newRootCommand()
	escaped := newRootCommand()
	escapeMarkdown(escaped)
	if err := doc.GenManTree(escaped, &doc.GenManHeader{Section: "1", Source: "berth " + version, Manual: "Berth"}, man); err != nil {
		t.Fatal(err)
	}
	pages := wantPage(t, man, root)
	if files, err := os.ReadDir(man); err != nil || len(files) != pages {
		t.Errorf("%d files for %d commands, %v", len(files), pages, err)
	}
	for name, write := range map[string]func(string) error{
		"berth.bash": func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"berth.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
		"_berth":     root.GenZshCompletionFile,
	} {
		file := filepath.Join(completions, name)
		if err := write(file); err != nil {
			t.Fatal(err)
		}
		if script, err := os.ReadFile(file); err != nil || !strings.Contains(string(script), cobra.ShellCompRequestCmd) {
			t.Errorf("%s does not ask the program, %v", name, err)
		}
	}
}

// wantPage checks the page of a command and of those below it, and returns how many there are.
func wantPage(t *testing.T, dir string, cmd *cobra.Command) (pages int) {
	t.Helper()
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return 0
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Errorf("%v: give the command a page, or hide it", err)
		return 0
	}
	plain := plainText(string(content))
	wants := []string{cmd.Short}
	wants = append(wants, strings.Split(cmd.Long, "\n")...)
	wants = append(wants, strings.Split(cmd.Example, "\n")...)
	for _, want := range wants {
		if want = plainText(want); !strings.Contains(plain, want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		for _, want := range []string{"--" + f.Name, f.Usage} {
			if want = plainText(want); !f.Hidden && !strings.Contains(plain, want) {
				t.Errorf("%s lacks %q of the flag --%s", name, want, f.Name)
			}
		}
	})
	for _, sub := range cmd.Commands() {
		pages += wantPage(t, dir, sub)
	}
	return pages + 1
}

// escapeMarkdown has the library, which takes the texts of commands and flags for Markdown, keep
// what would be a tag of HTML or emphasis.
func escapeMarkdown(cmd *cobra.Command) {
	special := strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`)
	cmd.Long = special.Replace(cmd.Long)
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { f.Usage = special.Replace(f.Usage) })
	for _, sub := range cmd.Commands() {
		escapeMarkdown(sub)
	}
}

// roff is what a page has beside its text: fonts, escapes, and commands at the beginning of lines.
var roff = regexp.MustCompile(`\\f[A-Z]|\\&|\\|(?m:^\.[A-Z]+$)`)

// plainText is a text without roff, quotes of code and breaks of lines.
func plainText(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(roff.ReplaceAllString(s, ""), "`", "")), " ")
}
