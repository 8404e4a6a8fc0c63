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
	crashFile     = "crash"      // the Go runtime's report of a fatal panic
	lastCrashFile = "crash.last" // the report of the last crash
)

// reportHead is how many bytes of a crash report are read.
const reportHead = 64 << 10

// openReport makes the Go runtime also write its report of a panic to a file.
func (q *Quarantine) openReport() error {
	crash, err := os.OpenFile(q.path(crashFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	// The runtime duplicates the descriptor.
	return errors.Join(debug.SetCrashOutput(crash, debug.CrashOptions{}), crash.Close())
}

func closeReport() error { return debug.SetCrashOutput(nil, debug.CrashOptions{}) }

// takeReport renames the last agent's crash report and returns its summary, "" if it did not crash.
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
	// Rename before counting: an agent that is killed in between loses a crash, but does not count
	// it twice.
	if err := os.Rename(q.path(crashFile), q.path(lastCrashFile)); err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	return summarizeCrash(b), nil
}

// summarizeCrash returns the first lines of a crash report and the agent's function that crashed.
// It returns "" for a process that was sent SIGQUIT or SIGABRT, since that is no crash.
func summarizeCrash(report []byte) string {
	text := strings.TrimLeft(string(report), "\n")
	if strings.HasPrefix(text, "SIGQUIT") || strings.HasPrefix(text, "SIGABRT") {
		return ""
	}
	if strings.HasPrefix(text, "goroutine ") {
		// The report of a fatal error begins with the stack.
		text = "fatal error\n\n" + text
	}
	head, stack, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	lines = lines[:min(3, len(lines))]
	if _, frames, ok := strings.Cut(stack, ":\n"); ok {
		for frame := range strings.Lines(frames) {
			if strings.HasPrefix(frame, "berth/") {
				frame = strings.TrimSpace(frame)
				// Without the arguments.
				lines = append(lines, "in "+frame[:max(0, strings.LastIndexByte(frame, '('))])
				break
			}
		}
	}
	out := strings.Join(lines, "\n")
	return out[:min(len(out), 1024)]
}
