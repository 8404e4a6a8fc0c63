package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Session is a shell at which a reader types. It is for one goroutine.
type Session struct {
	// Patience is how long a command may take, and what it prints may take to become what the page
	// shows: a reader looks again, too.
	Patience time.Duration

	cmd    *exec.Cmd
	in     io.WriteCloser
	status *bufio.Reader // of each command, a line
	dir    string        // of files of the session
	n      int           // commands so far
}

// again is how long a reader waits before he looks again.
const again = 200 * time.Millisecond

// Start opens a shell in the folder; env is added to the environment.
func Start(folder string, env ...string) (*Session, error) {
	dir, err := os.MkdirTemp("", "console")
	if err != nil {
		return nil, err
	}
	s := &Session{Patience: time.Minute, dir: dir, cmd: exec.Command("bash", "--norc", "--noprofile")}
	status, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.status = bufio.NewReader(status)
	s.cmd.Dir, s.cmd.Env, s.cmd.ExtraFiles = folder, append(os.Environ(), env...), []*os.File{theirs}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.in, err = s.cmd.StdinPipe(); err == nil {
		err = s.cmd.Start()
	}
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Close ends the shell and what it has started, and waits for both.
func (s *Session) Close() error {
	_, err := io.WriteString(s.in, "trap '' TERM; kill $(jobs -p) 2>/dev/null; wait\nexit 0\n")
	limit := time.AfterFunc(s.Patience, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) }) // it may have ended
	defer limit.Stop()
	return errors.Join(err, s.in.Close(), s.cmd.Wait(), os.RemoveAll(s.dir))
}

// Run runs the commands of a block, and returns the first thing that is not as the page says.
func (s *Session) Run(ctx context.Context, b Block) error {
	commands, err := b.Split()
	if err != nil {
		return err
	}
	for _, c := range commands {
		ctx, cancel := context.WithTimeout(ctx, s.Patience)
		err := s.run(ctx, c)
		cancel()
		if err != nil {
			return fmt.Errorf("%s:%d: %s\n%w", b.File, c.Line, c.Text, err)
		}
	}
	return nil
}

// looks are commands that only look: they may be typed again.
var looks = regexp.MustCompile(`^(berth (get|explain|events|describe|logs|top|check|image ls)|curl|bin/kubectl get)\b`)

func (s *Session) run(ctx context.Context, c Command) error {
	code, out, err := s.typed(ctx, c)
	for err == nil {
		wrong := judge(c, code, out())
		if wrong == nil || !isBackground(c) && !looks.MatchString(c.Text) {
			return wrong
		}
		select {
		case <-ctx.Done():
			return wrong
		case <-time.After(again):
		}
		if isBackground(c) {
			continue
		}
		if code, out, err = s.typed(ctx, c); err != nil && ctx.Err() != nil {
			return wrong // the last look was broken off
		}
	}
	return err
}

// isBackground reports whether the command goes on beside those that follow.
func isBackground(c Command) bool { return strings.HasSuffix(strings.TrimSpace(c.Text), "&") }

// typed types a command and returns how it ended and what it has printed so far.
func (s *Session) typed(ctx context.Context, c Command) (code int, out func() string, err error) {
	s.n++
	script, printed := filepath.Join(s.dir, fmt.Sprintf("%d.sh", s.n)), filepath.Join(s.dir, fmt.Sprintf("%d.out", s.n))
	if err := os.WriteFile(script, []byte(c.Text+"\n"), 0o600); err != nil {
		return 0, nil, err
	}
	out = func() string {
		text, err := os.ReadFile(printed)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	if _, err := fmt.Fprintf(s.in, ". %s >%s 2>&1 </dev/null 3>&-; echo $? >&3\n", script, printed); err != nil {
		return 0, nil, fmt.Errorf("the shell has ended: %w", err)
	}
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		line, err := s.status.ReadString('\n')
		answers <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-answers
		return 0, nil, fmt.Errorf("it has not ended after %v; it printed\n%s", s.Patience, out())
	case a := <-answers:
		if a.err != nil {
			return 0, nil, fmt.Errorf("the shell has ended: %w; it printed\n%s", a.err, out())
		}
		code, err := strconv.Atoi(strings.TrimSpace(a.line))
		return code, out, err
	}
}

// judge compares how a command ended with what the page says. It may fail only where the page shows
// an error.
func judge(c Command, code int, out string) error {
	fails := false
	for _, line := range c.Want {
		fails = fails || strings.HasPrefix(strings.ToLower(line), "error")
	}
	if code != 0 && !fails {
		return fmt.Errorf("exit code %d; it printed\n%s", code, out)
	}
	if len(trimEnd(c.Want)) == 0 {
		return nil
	}
	return Compare(c.Want, out)
}
