//go:build e2e

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a terminal of 100 columns and 30 lines (pts(4)): the one that a
// person sits at, and the one that programs have.
func openTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100})
	}
	if err != nil {
		t.Fatalf("terminal: %v", err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// terminalProgram is a berth command at a terminal, where we are the person.
type terminalProgram struct {
	n      *node
	cmd    *exec.Cmd
	person *os.File
	lines  chan string // that it showed; closed at its end
}

// onTerminal runs a berth command at a terminal of its own.
func (n *node) onTerminal(args ...string) *terminalProgram {
	n.t.Helper()
	person, program := openTerminal(n.t)
	args = slices.Insert(args, 1, "--run-dir", n.place.Run)
	p := &terminalProgram{n: n, cmd: exec.CommandContext(n.ctx, n.binary, args...), person: person, lines: make(chan string, 1000)}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = program, program, program
	p.resize(91, 27)                                                   // kubectl may miss a change at its start
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true} // so that the kernel tells it of a new size
	if err := p.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	if err := program.Close(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(person); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

func (p *terminalProgram) resize(columns, lines uint16) {
	p.n.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		p.n.t.Fatal(err)
	}
}

// say types the text.
func (p *terminalProgram) say(text string) {
	p.n.t.Helper()
	if _, err := io.WriteString(p.person, text); err != nil {
		p.n.t.Fatal(err)
	}
}

// await waits for a line that ends in the text; before it may stand a prompt, if the program was
// slower than we.
func (p *terminalProgram) await(want string) {
	p.n.t.Helper()
	var said []string
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.n.t.Fatalf("%q ended before %q, and said %q", p.cmd.Args, want, said)
			}
			said = append(said, line)
			if strings.HasSuffix(strings.TrimSpace(line), want) {
				return
			}
		case <-p.n.ctx.Done():
			p.n.t.Fatalf("%q says no %q, but %q", p.cmd.Args, want, said)
		}
	}
}

// wait waits for the end and returns the exit code.
func (p *terminalProgram) wait() int {
	p.n.t.Helper()
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.n.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// At a terminal berth run shows its pods as they are, logs to a file, and ends at Ctrl-C with the
// cursor back; the pods run on.
func TestTerminal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	person, program := openTerminal(t)
	a := n.newAgent()
	a.cmd.Stdin, a.cmd.Stdout, a.cmd.Stderr = program, program, program
	a.cmd.Env = append(os.Environ(), "TERM=xterm")
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	shown, err := os.Create(a.out)
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	if err := os.Symlink(n.place.Root+"/berth.log", a.log); err != nil { // for said
		t.Fatal(err)
	}
	go func() { _, _ = shown.ReadFrom(person) }() // until both ends are closed
	a.run()

	until(t, "the terminal to show the pod", func() bool {
		text := readText(t, a.out)
		return strings.Contains(text, "web ") && strings.Contains(text, "Running") && strings.Contains(text, "1/1")
	})
	web := n.awaitReady("web").named("web")
	if text := readText(t, a.out); strings.Contains(text, "level=") {
		t.Errorf("the log is in the way of the table:\n%q", text)
	}
	wantText(t, "the log file", readText(t, a.log), "containerd")
	if _, err := person.WriteString("\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if code := a.wait(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C, want 0:\n%s", code, a.said())
	}
	const hideCursor, showCursor = "\x1b[?25l", "\x1b[?25h"
	until(t, "the cursor to be shown again", func() bool {
		text := readText(t, a.out)
		return strings.LastIndex(text, showCursor) > strings.LastIndex(text, hideCursor)
	})
	wantText(t, "the pod after Ctrl-C", answers(t, "http://"+web.Status.PodIP+":8080/"), "Hello from web")
}
