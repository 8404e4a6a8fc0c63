package quarantine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
)

// The files of crash reports.
const (
	crashFile     = "crash"      // what the Go runtime says when the process dies of a panic
	lastCrashFile = "crash.last" // the report of the last crash
)

// reportHead is how many bytes of a crash report are read.
const reportHead = 64 << 10

// openReport has the Go runtime write its report of a panic into a file too.
func (q *Quarantine) openReport() error {
	crash, err := os.OpenFile(q.path(crashFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return errors.Join(debug.SetCrashOutput(crash, debug.CrashOptions{}), crash.Close()) // the runtime has a descriptor of its own
}

func closeReport() error { return debug.SetCrashOutput(nil, debug.CrashOptions{}) }

// takeReport moves the last agent's crash report out of the way and returns its beginning, "" when
// it did not crash.
func (q *Quarantine) takeReport() (string, error) {
	f, err := os.Open(q.path(crashFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, reportHead))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	if len(b) == 0 {
		return "", nil
	}
	// Before it is counted: an agent that is killed in between forgets a crash rather than counting
	// it twice.
	if err := os.Rename(q.path(crashFile), q.path(lastCrashFile)); err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	return summarizeCrash(b), nil
}

// summarizeCrash returns what a crash report says in its first lines, and the agent's function that
// it happened in. A process that was asked for its stacks by a signal did not crash: then it is "".
func summarizeCrash(report []byte) string {
	text := strings.TrimLeft(string(report), "\n")
	if strings.HasPrefix(text, "SIGQUIT") || strings.HasPrefix(text, "SIGABRT") {
		return ""
	}
	if strings.HasPrefix(text, "goroutine ") {
		text = "fatal error\n\n" + text // what the Go runtime cannot go on after: its report begins with the stack
	}
	head, stack, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	lines = lines[:min(3, len(lines))]
	if _, frames, ok := strings.Cut(stack, ":\n"); ok {
		for frame := range strings.Lines(frames) {
			if strings.HasPrefix(frame, "berth/") {
				frame = strings.TrimSpace(frame)
				lines = append(lines, "in "+frame[:max(0, strings.LastIndexByte(frame, '('))]) // without the arguments
				break
			}
		}
	}
	out := strings.Join(lines, "\n")
	return out[:min(len(out), 1024)]
}
