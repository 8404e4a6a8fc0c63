// Package console finds the commands that pages of documentation show, runs them as a reader would,
// and compares what they print with what the page says.
//
// Commands stand in fenced blocks of sh (a command a line) and of console (after "$ ", with what
// they print). A comment above the block says where it is run:
//
//	<!-- run by: TestName -->   by that test over real containers, or in the machine of make e2e-vm
//	<!-- run by: make target --> by that target
//	<!-- not run: reason -->     by none
//
// and a block without a comment is run by `make test`, over a machine in memory.
//
// Owns: the form of such blocks, and Session.
// Reads: pages.
// Never: is linked into the binary.
package console

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Block is a fenced block of a page.
type Block struct {
	File string
	Line int    // of its first fence
	Lang string // "" if it says none
	// RunBy is the test or target that runs it, NotRun why none does.
	RunBy, NotRun string
	Text          []string
}

// Commands reports whether the block is one of commands.
func (b Block) Commands() bool { return b.Lang == "sh" || b.Lang == "console" }

// Command is what a reader types.
type Command struct {
	Line int
	Text string
	// Want is what the page says that it prints; nil when it says nothing.
	Want []string
}

var (
	fence = regexp.MustCompile("^(\\s*)```\\s*(\\S*)")
	mark  = regexp.MustCompile(`^\s*<!-- (run by|not run): (.+) -->$`)
)

// Read returns the blocks of a page.
func Read(file string) ([]Block, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, string(text))
}

// Parse returns the blocks of the page's text.
func Parse(file, text string) ([]Block, error) {
	var out []Block
	var open *Block
	indent, above := "", []string(nil)
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && open == nil:
			indent, open = m[1], &Block{File: file, Line: i + 1, Lang: m[2]}
			switch {
			case above == nil:
			case above[1] == "run by":
				open.RunBy = above[2]
			default:
				open.NotRun = above[2]
			}
		case m != nil:
			out = append(out, *open)
			open, above = nil, nil
		case open != nil:
			open.Text = append(open.Text, strings.TrimPrefix(line, indent))
		case mark.MatchString(line):
			above = mark.FindStringSubmatch(line)
		case strings.TrimSpace(line) != "":
			above = nil
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block has no end", file, open.Line)
	}
	return out, nil
}

var heredoc = regexp.MustCompile(`<<-?\s*'?(\w+)'?`)

// Split returns the commands of a block of commands.
func (b Block) Split() ([]Command, error) {
	var out []Command
	for i := 0; i < len(b.Text); i++ {
		line, typed := b.Text[i], true
		if b.Lang == "console" {
			line, typed = strings.CutPrefix(line, "$ ")
		}
		switch {
		case !typed && len(out) == 0:
			return nil, fmt.Errorf("%s:%d: the block does not begin with a command: \"$ \" stands before what is typed", b.File, b.Line)
		case !typed:
			last := &out[len(out)-1]
			last.Want = append(last.Want, line)
			continue
		case b.Lang == "sh" && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")):
			continue
		}
		c := Command{Line: b.Line + 1 + i, Text: line}
		for strings.HasSuffix(c.Text, `\`) && i+1 < len(b.Text) {
			i++
			c.Text += "\n" + strings.TrimPrefix(b.Text[i], "> ")
		}
		if end := heredoc.FindStringSubmatch(line); end != nil {
			for i+1 < len(b.Text) {
				i++
				c.Text += "\n" + b.Text[i]
				if b.Text[i] == end[1] {
					break
				}
			}
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s:%d: the block has no command", b.File, b.Line)
	}
	return out, nil
}
