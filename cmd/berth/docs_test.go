package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent"
	"berth/agent/agenttest"
	"berth/test/console"
)

// memoryDir names the folder of a machine in memory, which the program berth of this test is on
// then.
const memoryDir = "BERTH_TEST_MEMORY"

// mainOrInMemory is main, or the same program on a machine in memory.
func mainOrInMemory() {
	dir := os.Getenv(memoryDir)
	if dir == "" {
		main()
		return
	}
	m, err := agenttest.NewMachine(dir, "registry.example.com/web:1")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	g := &globalFlags{inMemory: func(cfg *agent.Config) {
		c := m.Config()
		c.Environment.Listen = nil // other programs ask at the socket
		cfg.RootDir, cfg.PodLogsDir, cfg.ContainerLogsDir, cfg.Environment, cfg.LocalAPI = c.RootDir, c.PodLogsDir, "", c.Environment, nil
	}}
	args := os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		args = slices.Insert(args, 1, "--run-dir", filepath.Join(dir, "run"))
	}
	os.Exit(executeAs(context.Background(), newRootCommandFor(g), args, os.Stdout, os.Stderr))
}

// pages returns the pages with their blocks.
func pages(t *testing.T) map[string][]console.Block {
	t.Helper()
	out := map[string][]console.Block{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/howto/*.md", "docs/prometheus/*.md"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			blocks, err := console.Read(f)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.TrimPrefix(f, "../../")] = slices.DeleteFunc(blocks, func(b console.Block) bool { return !b.Commands() })
		}
	}
	return out
}

// TestDocsRun types the commands of all pages that no other test types, over a machine in memory: a
// page is a shell in an empty folder beside the examples.
func TestDocsRun(t *testing.T) {
	ran := 0
	for page, blocks := range pages(t) {
		here := slices.DeleteFunc(slices.Clone(blocks), func(b console.Block) bool { return b.RunBy != "" || b.NotRun != "" })
		if len(here) == 0 {
			continue
		}
		ran += len(here)
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			root, err := filepath.Abs("../..")
			if err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			for _, name := range []string{"examples", "docs"} {
				if err := os.Symlink(filepath.Join(root, name), filepath.Join(folder, name)); err != nil {
					t.Fatal(err)
				}
			}
			// A short name: that of a socket has a limit.
			memory, err := os.MkdirTemp("", "bm")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(memory); err != nil {
					t.Error(err)
				}
			})
			reader, err := console.Start(folder, memoryDir+"="+memory)
			if err != nil {
				t.Fatal(err)
			}
			reader.Patience = 20 * time.Second
			for _, b := range here {
				if err := reader.Run(t.Context(), b); err != nil {
					t.Error(err)
					break
				}
			}
			if err := reader.Close(); err != nil {
				t.Errorf("the shell: %v", err)
			}
		})
	}
	if ran == 0 {
		t.Error("no page has a block that is run here")
	}
}

var (
	makeTargets = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)
	simpleWord  = regexp.MustCompile(`^[^$<>|&;()*?'"` + "`" + `]*$`)
)

// TestDocsParse checks also those commands that no test can run: the shell can read them, and
// commands, flags and targets of make exist.
func TestDocsParse(t *testing.T) {
	makefiles := ""
	for _, pattern := range []string{"Makefile", "*/*.mk", "*/*/*.mk"} {
		files, err := filepath.Glob("../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			makefiles += string(text)
		}
	}
	targets := map[string]bool{}
	for _, m := range makeTargets.FindAllStringSubmatch(makefiles, -1) {
		targets[m[1]] = true
	}
	for page, blocks := range pages(t) {
		for _, b := range blocks {
			commands, err := b.Split()
			if err != nil {
				t.Error(err)
			}
			for _, c := range commands {
				if out, err := exec.Command("bash", "-n", "-c", c.Text).CombinedOutput(); err != nil {
					t.Errorf("%s:%d: %s: %s", page, c.Line, c.Text, out)
				}
				line, _, _ := strings.Cut(c.Text, " #")
				words := strings.Fields(line)
				if fault := faultOf(words, targets); fault != "" {
					t.Errorf("%s:%d: %s: %s", page, c.Line, c.Text, fault)
				}
			}
		}
	}
}

// faultOf returns what is wrong with a command of berth or make, as far as its words are plain.
func faultOf(words []string, targets map[string]bool) string {
	for len(words) > 0 && strings.Contains(words[0], "=") { // variables
		words = words[1:]
	}
	if i := slices.IndexFunc(words, func(w string) bool { return !simpleWord.MatchString(w) }); i >= 0 {
		words = words[:i]
	}
	switch {
	case len(words) > 1 && words[0] == "make":
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") && !targets[w] {
				return "there is no target " + w
			}
		}
	case len(words) > 0 && filepath.Base(words[0]) == "berth":
		cmd, args, err := newRootCommand().Find(words[1:])
		if err != nil {
			return err.Error()
		}
		if i := slices.Index(args, "--"); i >= 0 {
			args = args[:i]
		}
		if n := len(args); n > 0 && strings.HasPrefix(args[n-1], "-") && !strings.Contains(args[n-1], "=") {
			args = args[:n-1] // its value was cut off, if it has one
		}
		if err := cmd.ParseFlags(args); err != nil {
			return err.Error()
		}
	}
	return ""
}
