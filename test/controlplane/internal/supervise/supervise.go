// Package supervise runs child processes that cannot outlive this one.
//
// Owns: the processes that it starts.
// Reads: the ends of their logs, for the errors that it returns.
// Never: starts a process again.
package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// tailSize is how much of the end of a log, in bytes, an error quotes.
const tailSize = 4 << 10

// Command is what to run.
type Command struct {
	Name string   // for errors
	Path string   // of the program
	Args []string // the first is the name that the program is called by
	Env  []string // complete: nothing is inherited
	Dir  string   // the working directory
	Log  string   // the file that standard output and standard error are appended to
}

// Process is a child process.
type Process struct {
	command Command
	cmd     *exec.Cmd
	stopped atomic.Bool
	ended   chan struct{}
}

// Start starts a process, which is told to end only by Stop. If it ends before, unexpected is
// called with the reason, from another goroutine.
//
// The kernel kills the process when the thread that has started it ends, so the goroutine that
// calls Start must be locked to its thread (runtime.LockOSThread) for as long as the process is to
// live. The process has a process group of its own: what a terminal sends to this process does not
// reach it.
func Start(c Command, unexpected func(error)) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer log.Close() // the process has it open
	p := &Process{command: c, cmd: &exec.Cmd{Path: c.Path, Args: c.Args}, ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.Env, c.Dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	go func() {
		err := p.cmd.Wait()
		close(p.ended)
		if !p.stopped.Load() {
			unexpected(p.describe(err))
		}
	}()
	return p, nil
}

// Stop asks the process to end, kills it if it has not done so within grace, and returns when it
// has ended. Only having had to kill it is an error.
func (p *Process) Stop(grace time.Duration) error {
	p.stopped.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.command.Name, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.command.Name, err)
	}
	<-p.ended
	return p.describe(fmt.Errorf("killed, because it had not ended %v after SIGTERM", grace))
}

// describe says which process had an end, which, and what it last said.
func (p *Process) describe(end error) error {
	if end == nil {
		end = errors.New("exit status 0")
	}
	tail, err := readTail(p.command.Log)
	if err != nil {
		return fmt.Errorf("%s ended: %w (its log: %w)", p.command.Name, end, err)
	}
	return fmt.Errorf("%s ended: %w; the end of %s:\n%s", p.command.Name, end, p.command.Log, tail)
}

// readTail returns the last whole lines of a file.
func readTail(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := max(0, size-tailSize)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, tailSize))
	if from > 0 {
		_, tail, _ = bytes.Cut(tail, []byte("\n"))
	}
	return tail, err
}
