package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gopkg.in/natefinch/lumberjack.v2"

	"berth/internal/host/systemd"
)

// The bounds of the agent's own log.
const (
	logMegabytes = 10
	logBackups   = 3
)

// outputs are the destinations of berth run's output. The lines of its pods and the agent's log
// never mix.
type outputs struct {
	lines   io.Writer // of pods, if no table is redrawn
	logFile string    // "" logs to errOut
	own     string    // directory of a log file that the agent chose, else ""
	errOut  io.Writer
}

// computeOutputs selects the destinations. systemd's journal only gets the log. A terminal, or a
// file that is both standard output and standard error, only gets the lines of pods.
func computeOutputs(f runFlags, rootDir string, s streams) outputs {
	o := outputs{lines: s.out, logFile: f.logFile, errOut: s.errOut}
	switch {
	case systemd.IsJournal(s.out):
		o.lines = io.Discard
	case o.logFile == "" && (terminalOf(s.out) != nil || isSameFile(s.out, s.errOut)):
		o.own = rootDir
		o.logFile = filepath.Join(rootDir, agentLog)
	}
	return o
}

// agentLog is the name of the agent's log in the root directory.
const agentLog = "berth.log"

// isSameFile reports whether both writers write to the same file.
func isSameFile(a, b io.Writer) bool {
	x, ok := a.(*os.File)
	y, isFile := b.(*os.File)
	if !ok || !isFile {
		return false
	}
	one, err := x.Stat()
	two, otherErr := y.Stat()
	return err == nil && otherErr == nil && os.SameFile(one, two)
}

// openLog opens the agent's log and returns its close function.
func (o outputs) openLog(level slog.Leveler) (*slog.Logger, func() error, error) {
	if o.logFile == "" {
		return newTextLog(o.errOut, level), func() error { return nil }, nil
	}
	file, err := newRotatedFile(o.logFile)
	if err != nil {
		return nil, nil, err
	}
	return newTextLog(file, level), file.Close, nil
}

// removeLog removes a log file that the agent chose, its rotated files, and its directory if it is
// empty then.
func (o outputs) removeLog() error {
	if o.own == "" {
		return nil
	}
	name := strings.TrimSuffix(agentLog, filepath.Ext(agentLog))
	files, err := filepath.Glob(filepath.Join(o.own, name+"*"+filepath.Ext(agentLog)))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	if rmErr := os.Remove(o.own); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) && !errors.Is(rmErr, syscall.ENOTEMPTY) {
		err = errors.Join(err, rmErr)
	}
	return err
}

// newTextLog returns a logger that writes text lines, or journal entries if out is systemd's
// journal.
func newTextLog(out io.Writer, level slog.Leveler) *slog.Logger {
	if systemd.IsJournal(out) {
		return slog.New(systemd.NewJournalHandler(systemd.JournalConfig{Level: level, Stream: out}))
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
}

// newRotatedFile returns a log file of bounded size.
func newRotatedFile(path string) (io.WriteCloser, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	f := &lumberjack.Logger{Filename: path, MaxSize: logMegabytes, MaxBackups: logBackups}
	if _, err := f.Write(nil); err != nil { // opens it, so that a path that is not writable fails now
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// levelValue is a flag value that parses a log level by name.
type levelValue slog.Level

// Set implements pflag.Value.
func (v *levelValue) Set(s string) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[strings.ToLower(s)]
	if !ok {
		return errors.New("must be debug, info, warn or error")
	}
	*v = levelValue(level)
	return nil
}

// String implements pflag.Value.
func (v *levelValue) String() string { return strings.ToLower(slog.Level(*v).String()) }

// Type implements pflag.Value.
func (v *levelValue) Type() string { return "level" }
